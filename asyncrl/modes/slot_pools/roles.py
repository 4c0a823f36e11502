"""The roles of several policies, or of one and its frozen opponents: splits own their slots, and nobody grants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from asyncrl.buffers.layout import trajectory_fields
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slot_pool import SlotPool
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.envs.factory import acting_seed
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.acting_policies import ActingPolicies
from asyncrl.learner.policy_rows import PolicyRows
from asyncrl.learner.policy_source import PolicySource
from asyncrl.learner.worker import LearnerWorker
from asyncrl.modes.learner_parts import LearnerParts, build_trajectory_loop
from asyncrl.modes.roles import Exchange
from asyncrl.modes.trajectories.roles import TrajectoryRoles
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.sinks import PooledSlots, SlotSource
from asyncrl.run.setup import RunSetup


class SlotPoolRoles(TrajectoryRoles):
    """Workers whose columns are played by several policies, and a learner for each policy that trains."""

    @with_own_settings
    def acting_policy(
        self, setup: RunSetup, device: torch.device, actor_idx: int, phases: PhaseTimer
    ) -> ActingPolicy | ActingPolicies:
        """All policies and opponents of actor number `actor_idx`."""
        plan = setup.plan
        setups = [setup.for_policy(idx) for idx in range(plan.num_policies)]
        setups += [setup.for_opponent(number) for number in range(plan.num_opponents)]
        policies = [
            super(SlotPoolRoles, self).acting_policy(each, device, actor_idx * len(setups) + idx, phases)
            for idx, each in enumerate(setups)
        ]
        seed = acting_seed(setup.seed, actor_idx, setup.seed_steps)
        slots = TrajectorySlots(setup.arena)
        return ActingPolicies([each for each in policies if isinstance(each, ActingPolicy)], slots, seed, phases)

    @with_own_settings
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        parts, arena, plan, slots = LearnerParts.begin(setup), setup.arena, setup.plan, TrajectorySlots(setup.arena)
        assert slots.filled is not None
        own_rows = {field.name: field.row_shape for field in trajectory_fields(setup.spec, plan.rnn_state_size)}
        rows = PolicyRows(
            policy_idx=setup.policy_idx or 0,
            slots=slots,
            columns_per_dataset=plan.columns_per_dataset if plan.async_rl else None,
            num_datasets=plan.num_batches_to_accumulate,
            recurrence=plan.recurrence,
            max_policy_lag=plan.max_policy_lag,
            steady_lag_bound=plan.steady_lag_bound,
            row_shapes=own_rows,
        )
        source = PolicySource(
            rows=rows,
            filled=slots.filled,
            taken=arena.words("taken"),
            ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
            workers=workers,
            slots_per_worker=plan.worker_num_splits * plan.slots_per_split,
            is_async=plan.async_rl,
        )
        loop = build_trajectory_loop(parts, parts.on_policy_learner(), source, source, look)
        return parts.worker(loop), source

    def _slot_source(
        self,
        setup: RunSetup,
        slots: TrajectorySlots,
        worker_idx: int,
        groups: Mapping[int, HostEnvGroup],
        learners: Sequence[Waker],
    ) -> SlotSource:
        plan = setup.plan
        pools = {split_idx: SlotPool(setup.arena, slots, plan, split_idx) for split_idx in groups}
        weights = [WeightsChannel(setup.for_policy(idx).arena) for idx in range(plan.num_policies)]
        return PooledSlots(slots, pools, groups, learners, weights)
