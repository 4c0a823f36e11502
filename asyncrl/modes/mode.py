"""A way of running, as a record of what the core asks of it. It imports no torch, so its roles are named as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.layout import SharedSizes
from asyncrl.config.errors import Problem
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.processes.memory import format_bytes

MORE_MEMORY = "more memory (of a container: docker run --memory, systemd MemoryMax)"
_LARGE_ROLLOUT = 16 << 20  # bytes of one environment's observations; games of Atari have 3.6 MB


def _no_problems(config: TrainConfig, plan: ResourcePlan, spec: EnvSpec) -> Iterable[Problem]:
    return ()


def memory_text(needed: int, free: int) -> str:
    """The end of the sentence about memory that does not fit."""
    return (
        f"{format_bytes(needed)} ({needed} bytes) of shared memory, but only {format_bytes(free)} ({free} bytes) are "
        "free."
    )


def warn_about_large_observations(
    plan: ResourcePlan, spec: EnvSpec, name: str, num_rows: int, smaller: tuple[str, ...]
) -> Iterator[Problem]:
    """Warns if the observations that a run holds in any case are unusually large.

    Args:
        plan: the plan.
        spec: the environment's spaces.
        name: what the rows are, as the beginning of a sentence.
        num_rows: their number.
        smaller: flags with which there are fewer.
    """
    row = max(kind.observation.row_bytes for kind in spec.kinds)
    if row * num_rows >= _LARGE_ROLLOUT:
        text = (
            f"{name} takes {format_bytes(row * num_rows)}: an observation of {spec.env_id} has {format_bytes(row)}, "
            f"and there are {plan.num_envs} environments. Images of 84 x 84 are usual "
            "(gymnasium.wrappers.ResizeObservation)."
        )
        yield Problem(("env",), text, ("smaller images", *smaller))


@dataclass(frozen=True)
class Mode:
    """A way of running.

    Attributes:
        applies: whether a plan runs in this way.
        find_problems: settings that cannot be combined in this mode.
        arrays: arrays of the shared memory in addition to those of every run; gets the elements of each policy's block
            of weights, and `shared_sizes`.
        memory_problem: the problem of a run whose memory does not fit; gets the plan, and the bytes that are needed
            and free.
        is_past_warm_up: whether each learner has had the environment steps of its first update; gets the plan and the
            environment steps of the run.
        roles: `module:name` of the class of its roles (`asyncrl.modes.roles`).
        find_spec_problems: what is not possible in this mode with the environment's spaces.
        find_spec_warnings: what is probably a mistake with them.
        private_bytes: bytes that processes allocate for samples outside the shared memory.
        shared_sizes: sizes of the tensors that several processes train; None if each learner has its own.
        learner_grants_slots: whether the learner must release the slots of a dead worker before it is restarted.
        trains_in_datasets: whether a learner collects a whole dataset before it trains.
        trains_in_workers: whether each worker trains, so that each has a learning curve.
    """

    applies: Callable[[ResourcePlan], bool]
    find_problems: Callable[[TrainConfig, ResourcePlan], Iterable[Problem]]
    arrays: Callable[[EnvSpec, ResourcePlan, Sequence[int], SharedSizes | None], list[ArraySpec]]
    memory_problem: Callable[[ResourcePlan, int, int], Problem]
    is_past_warm_up: Callable[[ResourcePlan, int], bool]
    roles: str
    find_spec_problems: Callable[[TrainConfig, ResourcePlan, EnvSpec], Iterable[Problem]] = _no_problems
    find_spec_warnings: Callable[[TrainConfig, ResourcePlan, EnvSpec], Iterable[Problem]] = _no_problems
    private_bytes: Callable[[EnvSpec, ResourcePlan], int] = lambda spec, plan: 0
    shared_sizes: Callable[[EnvSpec, TrainConfig], SharedSizes | None] = lambda spec, config: None
    learner_grants_slots: bool = False
    trains_in_datasets: bool = True
    trains_in_workers: bool = False
