"""Trajectories in slots that belong to their splits, because several policies, or opponents, play their columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from asyncrl.buffers.arena import ArraySpec
from asyncrl.buffers.control import control_specs
from asyncrl.buffers.layout import SharedSizes, opponent_prefix, policy_prefix, prefixed_specs, slot_specs
from asyncrl.buffers.messages import ring_specs
from asyncrl.buffers.weights import weights_specs
from asyncrl.config.plan import ResourcePlan
from asyncrl.envs.spec import EnvSpec
from asyncrl.modes.trajectories.mode import TRAJECTORIES, trajectory_problems


def _arrays(
    spec: EnvSpec, plan: ResourcePlan, num_weights: Sequence[int], shared: SharedSizes | None
) -> list[ArraySpec]:
    specs = slot_specs(spec, plan)
    if plan.num_policies > 1:
        for policy_idx, num_values in enumerate(num_weights):
            steps = [ArraySpec(f"trained_{unit}_steps", "int64", (1,)) for unit in ("env", "agent")]
            own = [*_learner_specs(plan), *steps, *control_specs(), *weights_specs(num_values)]
            specs.extend(prefixed_specs(policy_prefix(policy_idx), own))
        return specs
    specs.extend(_learner_specs(plan))
    for number in range(plan.num_opponents):
        specs.extend(prefixed_specs(opponent_prefix(number), weights_specs(num_weights[0])))
    return specs


def _learner_specs(plan: ResourcePlan) -> list[ArraySpec]:
    """Arrays of one learner where splits own their slots.

    `taken` [slots] is written by this learner: the number in `slots.filled` of the contents that it needs no more. The
    rings `ready` announce complete slots to it; after a worker's death an item may be in a ring twice.
    """
    specs = [ArraySpec("taken", "int64", (plan.num_slots,))]
    for worker_idx in range(plan.num_workers):
        specs.extend(ring_specs(f"ready.{worker_idx}", 2 * plan.worker_num_splits * plan.slots_per_split))
    return specs


SLOT_POOLS = dataclasses.replace(
    TRAJECTORIES,
    applies=lambda plan: plan.has_slot_pools,
    # An iteration is always a number of whole slots.
    find_problems=functools.partial(trajectory_problems, needs_whole_rounds=False),
    arrays=_arrays,
    roles="asyncrl.modes.slot_pools.roles:SlotPoolRoles",
    learner_grants_slots=False,
)
