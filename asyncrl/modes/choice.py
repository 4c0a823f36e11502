"""The mode of a plan, and what a run needs in any mode and in its own: rules, arrays of the shared memory, bytes."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.buffers.arena import ArraySpec, arena_size
from asyncrl.buffers.layout import SharedSizes, run_specs
from asyncrl.config import checks
from asyncrl.config.errors import Problem
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.modes.hogwild.mode import HOGWILD, HOGWILD_WITH_REPLAY
from asyncrl.modes.mode import Mode
from asyncrl.modes.replay.mode import REPLAY
from asyncrl.modes.slot_pools.mode import SLOT_POOLS
from asyncrl.modes.tensors.mode import TENSORS, TENSORS_WITH_REPLAY
from asyncrl.modes.trajectories.mode import TRAJECTORIES

MODES: Sequence[Mode] = (
    HOGWILD_WITH_REPLAY,
    HOGWILD,
    TENSORS_WITH_REPLAY,
    TENSORS,
    REPLAY,
    SLOT_POOLS,
    TRAJECTORIES,
)
"""The first one that applies runs a plan."""


def mode_of(plan: ResourcePlan) -> Mode:
    """The way in which a plan runs."""
    return next(mode for mode in MODES if mode.applies(plan))


def find_problems(config: TrainConfig, plan: ResourcePlan, machine: Machine) -> list[Problem]:
    """Every reason why the run cannot start that settings and machine show.

    Args:
        config: the settings.
        plan: the resources resolved from them.
        machine: the machine that the plan is for.
    """
    return [*mode_of(plan).find_problems(config, plan), *checks.find_problems(config, plan, machine)]


def arena_specs(
    spec: EnvSpec, plan: ResourcePlan, num_weights: int | Sequence[int], shared: SharedSizes | None = None
) -> list[ArraySpec]:
    """Every array of a run.

    Args:
        spec: the environment's spaces.
        plan: the plan.
        num_weights: elements of a block of published weights; of each policy, where there are several.
        shared: sizes of the tensors that several processes train (`Mode.shared_sizes`).

    Raises:
        ValueError: `num_weights` are not of as many policies as the plan has.
    """
    sizes = [num_weights] if isinstance(num_weights, int) else list(num_weights)
    if len(sizes) != plan.num_policies:
        raise ValueError(f"weights of {len(sizes)} policies, but the plan has {plan.num_policies}")
    return [*mode_of(plan).arrays(spec, plan, sizes, shared), *run_specs(plan, sizes)]


def arena_bytes(
    spec: EnvSpec, plan: ResourcePlan, num_weights: int | Sequence[int], shared: SharedSizes | None = None
) -> int:
    """Bytes of a run's shared memory, and of the samples that its processes keep in private memory."""
    return mode_of(plan).private_bytes(spec, plan) + arena_size(arena_specs(spec, plan, num_weights, shared))
