"""Hogwild workers: each collects and learns in turn.

consumes  shared parameters and statistics; published ones where the parameter server combines gradients
produces  optimizer steps of the shared parameters, or gradients; its part of the common statistics; counts of steps
waits     for nobody; for WAIT_S while its gradients are not combined yet, and after all steps of the run were made
stops     when the run has ended

Each environment step of PPO and A2C is trained on or reported as dropped: the successor of a dead worker reports its
unfinished rollout.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from asyncrl.algorithms.losses import Progress
from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.buffers.replay import ReplayLimiter
from asyncrl.buffers.shared_tensors import GlobalClock
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.schema import TrainConfig
from asyncrl.inference.acting import Act
from asyncrl.learner.dataset import Batcher, Dataset
from asyncrl.learner.replay_loop import MOST_UPDATES_AT_ONCE
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.slot_ledger import Columns
from asyncrl.models.exploration import Exploration
from asyncrl.modes.hogwild.actor_critic import HogwildActorCritic
from asyncrl.modes.hogwild.staleness import StalenessMeter
from asyncrl.observers.reports import Phase, PhaseTimer, RolloutReport, SampleAges
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.rollout.worker import WAIT_S, RolloutWorkerBase, Split

_SLOT = 0


@dataclass(frozen=True)
class WorkerParts:
    """What every worker needs. `arena` is its private memory, its networks are on `device`, `seed` is for actions."""

    worker_idx: int
    control: RunControl
    clock: GlobalClock
    arena: Arena
    phases: PhaseTimer
    meter: StalenessMeter
    device: torch.device
    seed: int


class PrivateSlot:
    """The only slot, in a worker's private memory: a `SlotSource`."""

    def __init__(self, slots: TrajectorySlots) -> None:
        self._slots = slots

    def next_slot(self, split_idx: int) -> int:
        self._slots.grant(_SLOT, split_idx)
        return _SLOT

    def complete(self, slot: int) -> None:
        """The worker itself trains on the slot, and frees it."""


class HogwildWorker(RolloutWorkerBase, abc.ABC):
    """Collects and learns in turn, until all workers together have made the steps of the run."""

    waiting_for = Phase.WAIT_UPDATES

    def __init__(self, parts: WorkerParts, split: Split) -> None:
        """Takes ownership of the split, whose environments are reset, and of the memory."""
        super().__init__(parts.worker_idx, [split.group], parts.control, parts.phases)
        self._split = split
        self._clock = parts.clock
        self._arena = parts.arena
        self._meter = parts.meter

    def poll(self) -> float:
        """Works for a short time, until the run has all its steps; returns seconds as `RolloutWorker.poll` does."""
        if self._clock.is_over and not self._is_training:
            self._clock.finish(self.worker_idx)
            return WAIT_S
        return self._work()

    def report(self) -> RolloutReport:
        """The work since the last report, with the staleness of the updates."""
        return dataclasses.replace(super().report(), staleness=self._meter.take())

    def close(self) -> None:
        """Closes the environments and frees the private memory."""
        super().close()
        self._arena.close()

    @property
    def _is_training(self) -> bool:
        """Whether gradients of a rollout are still to be sent."""
        return False

    @abc.abstractmethod
    def _work(self) -> float: ...


class HogwildTrajectoryWorker(HogwildWorker):
    """A worker of A3C or PPO: collects a rollout with its network, and steps along its gradients. Owns one slot."""

    @with_own_settings
    def __init__(
        self,
        parts: WorkerParts,
        split: Split,
        slots: TrajectorySlots,
        learner: HogwildActorCritic,
        places: GradientPlaces | None,
        recurrence: int,
    ) -> None:
        """Gradients go to `places`; the learner applies them if that is None."""
        super().__init__(parts, split)
        self._slots = slots
        self._batcher = Batcher(slots, slots.num_envs, recurrence)
        self._learner = learner
        self._places = places
        self._updates: Iterator[Progress] | None = None  # of the rollout that is being trained on
        split.group.record_dropped(self._clock.use_steps(self.worker_idx))

    def _work(self) -> float:
        """Collects one rollout and learns from it; makes one gradient of it at a time if gradients go to places."""
        if self._places is not None and self._places.free_place(self.worker_idx) is None:
            return WAIT_S
        if self._updates is None:
            dataset = self._collect()
            if dataset is None:
                return WAIT_S
            # There are no valid samples if all environments failed.
            steps = self._clock.scheduled_steps
            self._updates = self._learner.updates(dataset, steps) if dataset.num_valid > 0 else None
        with own_settings():
            return self._train()

    @property
    def _is_training(self) -> bool:
        return self._updates is not None

    def _train(self) -> float:
        for progress in self._updates or ():
            self._clock.use_steps(self.worker_idx)
            self._control.count_turn(self.worker_idx)  # passes over a rollout may take long
            if self._control.ended:
                break
            if self._places is not None and not progress.is_last:
                self.phases.charge(Phase.TRAIN)
                return 0.0
        if self._updates is not None:
            self.record_training(self._learner.take_metrics(), self._learner.skipped_steps)
        self._updates = None
        self._clock.use_steps(self.worker_idx)
        self._slots.free(_SLOT)
        self.phases.charge(Phase.TRAIN)
        return 0.0

    def _collect(self) -> Dataset | None:
        """Fills the slot; returns its samples, or None if the run has ended meanwhile: they are dropped."""
        with own_settings():
            self._learner.begin()
        self.phases.charge(Phase.FETCH)
        self._split.begin()
        while self._split.place is not None:
            self._control.count_steps(self.worker_idx, self._split.advance())
            if self._control.ended:
                self._split.group.record_dropped(self._clock.use_steps(self.worker_idx))
                return None
        self._slots.take(_SLOT)
        with own_settings():
            dataset = self._batcher.collect([Columns(_SLOT, 0, self._slots.num_envs, is_last=True)])
            self.phases.charge(Phase.COPY)
            self._learner.follow_units()
        return dataset


class HogwildSacWorker(HogwildWorker):
    """A worker of asynchronous SAC: steps and updates in turn, at the configured ratio. Owns a replay.

    The worker that updates the critics also moves the target critics, so they move once for each update.
    """

    def __init__(
        self,
        parts: WorkerParts,
        split: Split,
        limiter: ReplayLimiter,
        sampler: ReplaySampler,
        learner: SacLearner,
        config: TrainConfig,
    ) -> None:
        """`limiter` limits the steps by the updates."""
        super().__init__(parts, split)
        self._limiter = limiter
        self._sampler = sampler
        self._learner = learner
        self._config = config

    def report(self) -> RolloutReport:
        """The work since the last report, with the ages of samples."""
        ages, self._sampler.ages = self._sampler.ages, SampleAges()
        return dataclasses.replace(super().report(), ages=ages)

    def _work(self) -> float:
        """Makes the updates that are due, or one step of every environment."""
        num_updates = min(self._limiter.due, MOST_UPDATES_AT_ONCE)
        if num_updates > 0:
            with own_settings():
                batches = self._sampler.sample(num_updates, self._config.batch_size)
                self._sampler.record_ages(self._meter.num_updates, self._clock.num_workers)
                if self._config.normalize_input:
                    self._learner.observe(torch.cat([batch.obs for batch in batches]))
                self.phases.charge(Phase.GATHER)
                metrics = self._learner.train(batches, self._clock.scheduled_steps)
                self.record_training(metrics, self._learner.skipped_steps)
            self._limiter.num_updates += num_updates
            self.phases.charge(Phase.TRAIN)
            return 0.0
        self._limiter.release()
        if not self._split.begin():
            return WAIT_S
        self._control.count_steps(self.worker_idx, self._split.advance())
        self.phases.charge(Phase.OTHER)
        return 0.0


class OwnActions:
    """An `ActionSource` that acts at once, with the network that the worker trains."""

    def __init__(
        self,
        act: Act,
        buffer: InferenceBuffer,
        version: Callable[[], int],
        exploration: Exploration | None = None,
    ) -> None:
        """Reads observations from `buffer` and writes actions to it; `version` returns the current policy version."""
        self._act = act
        self._buffer = buffer
        self._version = version
        self._exploration = exploration

    @with_own_settings
    def request(self, split_idx: int, slot: int, row: int) -> bool:
        place = slot, row
        answer = self._act(*self._buffer.inputs_at(place))
        if self._exploration is not None:
            answer = self._exploration.apply([place], answer)
        self._buffer.answer(place, slice(0, self._buffer.num_envs), answer, self._version(), time.monotonic())
        return True

    def is_answered(self, split_idx: int) -> bool:
        return True
