"""The roles of trajectories in slots that one learner grants.

rollout worker --requests--> inference worker        (central inference only)
rollout worker <--actions--- inference worker
rollout worker --ready slots--> learner --granted slots--> rollout worker
learner --published weights--> whoever acts, evaluation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.learner.dataset import Batcher, DeviceSlots
from asyncrl.learner.slot_ledger import SlotExchange, SlotLedger
from asyncrl.learner.worker import LearnerWorker
from asyncrl.modes.learner_parts import LearnerParts, build_trajectory_loop
from asyncrl.modes.roles import ActingRoles, Exchange
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.sinks import GrantedSlots, Sink, SlotSink, SlotSource
from asyncrl.run.setup import RunSetup


class TrajectoryRoles(ActingRoles):
    """Workers that fill granted slots, and a learner that trains on them and grants them again."""

    def prepare(self, setup: RunSetup) -> None:
        TrajectorySlots(setup.arena).reset()

    def inference_buffer(self, setup: RunSetup) -> InferenceBuffer:
        return TrajectorySlots(setup.arena)

    def sink_maker(
        self, setup: RunSetup, worker_idx: int, groups: Mapping[int, HostEnvGroup], learners: Sequence[Waker]
    ) -> Callable[[int, HostEnvGroup], Sink]:
        slots = TrajectorySlots(setup.arena)
        source = self._slot_source(setup, slots, worker_idx, groups, learners)
        return lambda split_idx, group: SlotSink(split_idx, group, slots, source)

    @with_own_settings
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        parts, arena, plan = LearnerParts.begin(setup), setup.arena, setup.plan
        slots = TrajectorySlots(arena)
        copies = DeviceSlots(slots, parts.device, arena) if parts.device.type == "cuda" else None
        exchange = SlotExchange(
            ledger=SlotLedger(slots, plan, copies),
            ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
            granted=[IndexRing(arena, f"granted.{worker_idx}") for worker_idx in range(plan.num_workers)],
            workers=workers,
            splits_per_worker=plan.worker_num_splits,
            worker_deaths=setup.worker_deaths,
        )
        batcher = Batcher(slots, plan.columns_per_dataset, plan.recurrence, plan.steady_lag_bound, copies)
        loop = build_trajectory_loop(parts, parts.on_policy_learner(), exchange, batcher, look)
        return parts.worker(loop), exchange

    def _slot_source(
        self,
        setup: RunSetup,
        slots: TrajectorySlots,
        worker_idx: int,
        groups: Mapping[int, HostEnvGroup],
        learners: Sequence[Waker],
    ) -> SlotSource:
        """Where the splits of a worker get their slots."""
        granted, ready = (IndexRing(setup.arena, f"{name}.{worker_idx}") for name in ("granted", "ready"))
        return GrantedSlots(slots, granted, ready, learners[0])
