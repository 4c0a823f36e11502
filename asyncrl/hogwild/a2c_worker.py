"""A worker of A3C: it collects a rollout with its network, and its gradient goes into the shared parameters.

consumes  shared parameters and statistics, or published ones where a central process combines gradients
produces  steps of the shared parameters, or gradients; its part of the common statistics; counts of steps
waits     for nobody; for WAIT_S where its gradients were not combined yet, and when all steps of the run were made
stops     when the run has ended

Each environment step is trained on or reported as dropped: an unfinished rollout of a process that died is reported
by the process that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.hogwild.actor_critic import HogwildActorCritic
from asyncrl.hogwild.worker import HogwildWorker, WorkerParts
from asyncrl.learner.dataset import Batcher
from asyncrl.learner.slot_ledger import Columns
from asyncrl.monitoring.phases import Phase
from asyncrl.rollout.worker import WAIT_S, Split

_SLOT = _SPLIT = 0  # a worker has one of each, in memory of its own


class HogwildA2cWorker(HogwildWorker):
    """Collects a rollout and learns from it. Owns environments, one slot, and its gradients."""

    def __init__(
        self,
        parts: WorkerParts,
        split: Split,
        slots: TrajectorySlots,
        learner: HogwildActorCritic,
        pull: Callable[[], None],
        has_room: Callable[[], bool],
        recurrence: int,
    ) -> None:
        """Takes ownership of the split.

        Args:
            parts: what every worker has.
            split: its environments, all reset; their actions come from the learner's network.
            slots: room for one rollout.
            learner: computes gradients and hands them over.
            pull: copies the weights that the next rollout is collected with.
            has_room: whether the next gradient can be handed over.
            recurrence: steps of a sequence that is trained as one.
        """
        super().__init__(parts, split.group)
        self._split = split
        self._slots = slots
        self._batcher = Batcher(slots, slots.num_envs, recurrence)
        self._learner = learner
        self._pull = pull
        self._has_room = has_room
        split.group.note_dropped(self._clock.unsettled_steps(self.worker_idx))
        self._clock.settle_steps(self.worker_idx)

    def _work(self) -> float:
        """Collects one rollout with one copy of the weights, and learns from it."""
        if not self._has_room():
            return WAIT_S
        self._learner.begin(self._pull)
        self.phases.charge(Phase.FETCH)
        self._collect()
        self._slots.take(_SLOT)
        dataset = self._batcher.collect([Columns(_SLOT, 0, self._slots.num_envs, is_last=True)])
        self.phases.charge(Phase.COPY)
        if dataset.num_valid > 0:  # otherwise all of it was of environments that failed
            self._learner.follow_units()
            for _ in self._learner.updates(dataset, self._clock.env_steps):
                pass  # nobody waits for weights
            self.note_training(self._learner.take_metrics(), self._learner.skipped_steps)
        self._clock.settle_steps(self.worker_idx)
        self._slots.free(_SLOT)
        self.phases.charge(Phase.TRAIN)
        return 0.0

    def _collect(self) -> None:
        self._slots.grant(_SLOT, _SPLIT)
        self._split.begin(_SLOT)
        ready = None
        while ready is None:
            num_steps, ready = self._split.advance()
            self.count_steps(num_steps)
