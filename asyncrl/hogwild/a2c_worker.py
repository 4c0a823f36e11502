"""A worker of A3C: it collects a rollout with its network, and its gradient goes into the shared parameters.

consumes  shared parameters and statistics, or published ones where a central process combines gradients
produces  steps of the shared parameters, or gradients; its part of the common statistics; counts of steps
waits     for nobody; for WAIT_S where its gradients were not combined yet, and when all steps of the run were made
stops     when the run has ended
"""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.hogwild.actor_critic import HogwildActorCritic
from asyncrl.hogwild.clock import GlobalClock
from asyncrl.learner.batcher import Batcher
from asyncrl.learner.slot_ledger import Columns
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.rollout.split import Split
from asyncrl.rollout.worker import WAIT_S, WorkerReports

_SLOT = _SPLIT = 0  # a worker has one of each, in memory of its own


class HogwildA2cWorker(WorkerReports):
    """Collects and learns in turn. Owns environments, one slot, and its gradients."""

    def __init__(
        self,
        worker_idx: int,
        split: Split,
        slots: TrajectorySlots,
        learner: HogwildActorCritic,
        pull: Callable[[], None],
        has_room: Callable[[], bool],
        clock: GlobalClock,
        control: RunControl,
        phases: PhaseTimer,
        arena: Arena,
        recurrence: int,
    ) -> None:
        """Takes ownership of the split.

        Args:
            worker_idx: its number.
            split: its environments, all reset; their actions come from the learner's network.
            slots: room for one rollout.
            learner: computes gradients and hands them over.
            pull: copies the weights that the next rollout is collected with.
            has_room: whether the next gradient can be handed over.
            clock: environment steps of all workers.
            control: the run's words.
            phases: its time goes here.
            arena: the memory of its own, which goes with it.
            recurrence: steps of a sequence that is trained as one.
        """
        super().__init__(worker_idx, [split.group], control, phases)
        self._split = split
        self._slots = slots
        self._batcher = Batcher(slots, slots.num_envs, recurrence)
        self._learner = learner
        self._pull = pull
        self._has_room = has_room
        self._clock = clock
        self._arena = arena

    def poll(self) -> float:
        """Collects one rollout with one copy of the weights, and learns from it.

        Returns:
            Seconds to wait, unless woken, before polling again.
        """
        if self._clock.is_over:
            self._clock.rest(self.worker_idx)
            return WAIT_S
        if not self._has_room():
            return WAIT_S
        self._learner.begin(self._pull)
        self.phases.charge(Phase.FETCH)
        self._collect()
        self._slots.take(_SLOT)
        if self._learner.has_lost_its_units:
            self._slots.free(_SLOT)
            return 0.0
        dataset = self._batcher.collect([Columns(_SLOT, 0, self._slots.num_envs, is_last=True)])
        self.phases.charge(Phase.COPY)
        if dataset.num_valid == 0:  # all of it was of environments that failed
            self._slots.free(_SLOT)
            return 0.0
        metrics = self._learner.train(dataset, self._clock.env_steps, after_epoch=_nothing)
        self._slots.free(_SLOT)
        self.note_training(metrics, self._learner.skipped_steps)
        self.phases.charge(Phase.TRAIN)
        return 0.0

    def close(self) -> None:
        """Closes the environments and gives the memory back."""
        super().close()
        self._arena.close()

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        return Phase.WAIT_UPDATES

    def _collect(self) -> None:
        self._slots.grant(_SLOT, _SPLIT)
        self._split.begin(_SLOT)
        ready = None
        while ready is None:
            num_steps, ready = self._split.advance()
            self.count_steps(num_steps)


def _nothing() -> None:
    pass
