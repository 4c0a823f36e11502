"""A way of running, as a record of what the core asks of it. It imports no torch, so its roles are named as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.layout import SharedSizes
from asyncrl.config.errors import Problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec

MORE_MEMORY = "more memory (of a container: docker run --memory, systemd MemoryMax)"


class SamplesAtOnce(NamedTuple):
    """The rows that a run must hold in any case.

    Attributes:
        name: what they are, as the beginning of a sentence.
        num_rows: their number.
        smaller: flags with which there are fewer.
    """

    name: str
    num_rows: int
    smaller: tuple[str, ...]


def _no_bytes(spec: EnvSpec, plan: ResourcePlan) -> int:
    return 0


def _no_sizes(spec: EnvSpec, config: TrainConfig) -> SharedSizes | None:
    return None


@dataclass(frozen=True)
class Mode:
    """A way of running.

    Attributes:
        applies: whether a plan runs in this way.
        find_problems: settings that cannot be combined in this mode.
        arrays: arrays of the shared memory in addition to those of every run; gets the elements of each policy's block
            of weights, and `shared_sizes`.
        memory_problem: the problem of a run whose memory does not fit; gets the plan, the bytes that are needed and
            free, and both as words.
        samples_at_once: the rows that a run must hold in any case.
        is_past_warm_up: whether each learner has had the environment steps of its first update; gets the plan and the
            environment steps of the run.
        roles: `module:name` of the class of its roles (`asyncrl.modes.roles`).
        private_bytes: bytes that processes allocate for samples outside the shared memory.
        shared_sizes: sizes of the tensors that several processes train; None if each learner has its own.
        learner_grants_slots: whether the learner must release the slots of a dead worker before it is restarted.
        trains_in_datasets: whether a learner collects a whole dataset before it trains.
        trains_in_workers: whether each worker trains, so that each has a learning curve.
    """

    applies: Callable[[ResourcePlan], bool]
    find_problems: Callable[[TrainConfig, ResourcePlan], Iterable[Problem]]
    arrays: Callable[[EnvSpec, ResourcePlan, Sequence[int], SharedSizes | None], list[ArraySpec]]
    memory_problem: Callable[[ResourcePlan, int, int, str], Problem]
    samples_at_once: Callable[[ResourcePlan], SamplesAtOnce]
    is_past_warm_up: Callable[[ResourcePlan, int], bool]
    roles: str
    private_bytes: Callable[[EnvSpec, ResourcePlan], int] = _no_bytes
    shared_sizes: Callable[[EnvSpec, TrainConfig], SharedSizes | None] = _no_sizes
    learner_grants_slots: bool = False
    trains_in_datasets: bool = True
    trains_in_workers: bool = False
