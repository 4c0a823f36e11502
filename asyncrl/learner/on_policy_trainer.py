"""Training from trajectories: one dataset after the other.

consumes  datasets from where they are made: of full slots (`SlotDatasets`), or on the device by environments that are
          there themselves (`asyncrl.on_device`)
produces  published weights
waits     for the next dataset
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.dataset import Batcher, Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.ranks import Agreement, Ranks
from asyncrl.learner.slot_ledger import Columns, SlotExchange
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import StopCondition, WeightsPublisher
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import LagMetrics, LearnerReport

_LOOK_EVERY_S = 0.2


class DatasetSource(Protocol):
    """Where datasets come from, one at a time."""

    @property
    def num_ready(self) -> int:
        """Slots that wait to be trained on."""

    @property
    def dropped_samples(self) -> int:
        """Samples dropped so far."""

    def take(self, learner_version: int, timeout_s: float) -> Dataset | None:
        """The next dataset if there is one within `timeout_s`; it stays as it is until it is released."""

    def begin_next(self) -> None:
        """With a fixed lag: the weights are published with which the next dataset is to be collected."""

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of the samples of the dataset that was taken."""

    def release(self) -> None:
        """Gives the dataset back, whose weights are published."""


class SlotDatasets:
    """Datasets of full slots, which are granted again after training."""

    def __init__(self, exchange: SlotExchange, batcher: Batcher, phases: PhaseTimer) -> None:
        """Takes what gives slots and what copies them; waiting is charged to `phases`."""
        self._exchange = exchange
        self._batcher = batcher
        self._phases = phases
        self._columns: list[Columns] = []

    @property
    def num_ready(self) -> int:
        """See `DatasetSource`."""
        return self._exchange.num_ready

    @property
    def dropped_samples(self) -> int:
        """See `DatasetSource`; they were too old, or their worker died."""
        return self._exchange.dropped_samples

    def take(self, learner_version: int, timeout_s: float) -> Dataset | None:
        """See `DatasetSource`."""
        columns = self._exchange.take_dataset(learner_version, timeout_s)
        self._phases.charge(Phase.WAIT_SAMPLES)
        if columns is None:
            self._exchange.poll()  # slots that were dropped as too old are free now
            return None
        self._columns = columns
        return self._batcher.collect(columns)

    def begin_next(self) -> None:
        """See `DatasetSource`."""
        self._exchange.begin_dataset()

    def lag(self, learner_version: int) -> LagMetrics:
        """See `DatasetSource`."""
        return self._batcher.lag(learner_version)

    def release(self) -> None:
        """See `DatasetSource`."""
        self._exchange.release(self._columns)


class OnPolicyTrainer:
    """Trains one dataset after the other. Owns the learner and its counters."""

    def __init__(
        self,
        learner: OnPolicyLearner,
        datasets: DatasetSource,
        publisher: WeightsPublisher,
        config: TrainConfig,
        phases: PhaseTimer,
        control: RunControl,
        stopping: StopCondition,
        env_steps: int = 0,
        num_samples: int = 0,
        agreement: Agreement | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Publishes the first weights; samples may be collected from then on.

        Args:
            learner: what trains, already in the state to begin with.
            datasets: gives them and takes them back.
            publisher: takes weights.
            config: the run's settings.
            phases: the learner's time goes here.
            control: the run's words.
            stopping: says when an update is to end after the pass in hand.
            env_steps: environment steps of the run that were trained on before.
            num_samples: samples that were trained before, each as often as it was.
            agreement: what all ranks go by.
            look: called a few times a second during an update, for a process that has other things to look after.
        """
        self._control = control
        self._stopping = stopping
        self._look = look
        self._looked_at = time.monotonic()
        self._has_fixed_lag = config.async_rl and config.fixed_lag
        self._num_epochs = 0  # of the dataset in training
        self._was_cut_short = False  # whether passes over the last dataset were left out
        self._agreement = agreement or Agreement(Ranks())
        self._learner = learner
        self._datasets = datasets
        self._publisher = publisher
        self._config = config
        self._phases = phases
        self._block = torch.empty(learner.block_size, device=learner.device)
        self._env_steps = env_steps
        self._first_env_steps = env_steps
        self._own_env_steps = 0
        self._env_steps_seen = self._env_steps  # with those of the dataset that is being trained on
        self._num_samples = num_samples
        self._report_started = time.monotonic()
        self._publish()

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained on."""
        return self._env_steps

    @property
    def own_env_steps(self) -> int:
        """Environment steps of this process that were trained on."""
        return self._own_env_steps

    @property
    def has_more_to_learn(self) -> bool:
        """Whether the steps that the run is to have are not all trained on yet, with all passes."""
        return self._was_cut_short or self._env_steps < self._config.train_for_env_steps

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Trains on the next dataset if there is one within `timeout_s`.

        Order matters: weights are published before the dataset is given back, so that whoever is granted its slots acts
        with what was learned from it. With a fixed lag they are published before the next dataset is begun, when this
        one is whole, so nobody collects.
        """
        dataset = self._datasets.take(self._learner.policy_version, timeout_s)
        if dataset is None:
            return None
        num_valid = dataset.num_valid
        lag = self._datasets.lag(self._learner.policy_version) if num_valid > 0 else None
        self._phases.charge(Phase.COPY)
        if self._has_fixed_lag:
            self._publish()
            self._datasets.begin_next()
        turn = self._agreement.take_turn(1, self._own_env_steps + num_valid)
        self._phases.charge(Phase.WAIT_RANKS)
        num_steps = self._first_env_steps + turn.env_steps - self._env_steps
        if turn.is_over or num_steps == 0:  # in the latter case all of it was of environments that failed
            self._datasets.release()
            return None
        skip = self._config.debug_skip_training
        self._own_env_steps += num_valid
        self._env_steps_seen = self._env_steps + num_steps
        self._num_epochs = 0
        self._control.note_minibatch(0, 1)
        metrics = None if skip else self._learner.train(dataset, self._env_steps, self._end_epoch, self._note_minibatch)
        self._control.note_minibatch(0, 0)
        self._phases.charge(Phase.TRAIN)
        self._phases.move(self._agreement.ranks.take_seconds(), Phase.TRAIN, Phase.EXCHANGE)
        self._datasets.release()
        self._env_steps = self._env_steps_seen
        self._num_samples += num_steps * self._num_epochs
        self._phases.charge(Phase.OTHER)
        now, phases = time.monotonic(), self._phases.take()
        report = LearnerReport(
            env_steps=self._env_steps,
            num_samples=self._num_samples,
            num_updates=self._learner.policy_version,
            policy_version=self._learner.policy_version,
            wall_s=now - self._report_started,
            busy_s=busy_s(phases),
            train=metrics,
            lag=lag,
            slots_ready=self._datasets.num_ready,
            dropped_samples=self._datasets.dropped_samples,
            skipped_steps=self._learner.skipped_steps,
            phases=phases,
            notice=self._learner.take_notice(),
        )
        self._report_started = now
        return report

    def state(self) -> LearnerState:
        """All that continues the training, but for what other processes have in hand."""
        state = self._learner.state_dict()
        return LearnerState(state.model, state.optimizer, {**state.scalars, "num_samples": self._num_samples})

    def settle(self) -> None:
        """With a fixed lag: publishes what was learned from the last dataset, which no later one does."""
        if self._has_fixed_lag:
            self._publish()

    def take_report(self) -> None:
        """Nothing: each dataset was reported when it was trained on."""

    def replay(self) -> None:
        """Nothing: trajectories are used once."""

    def _note_minibatch(self, num_done: int, num_total: int) -> None:
        self._control.note_minibatch(num_done, num_total)
        if self._look is not None and time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._look()
            self._looked_at = time.monotonic()

    def _end_epoch(self, is_last: bool) -> bool:
        """Publishes; returns whether the update ends here, for one rank is to stop. The last pass needs no question."""
        if not self._has_fixed_lag:
            self._publish()
        self._num_epochs += 1
        self._was_cut_short = False
        if is_last:
            return False
        self._was_cut_short = self._agreement.should_stop(self._stopping.is_met)
        self._phases.charge(Phase.WAIT_RANKS)
        return self._was_cut_short

    def _publish(self) -> None:
        self._phases.charge(Phase.TRAIN)
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._learner.policy_version, self._env_steps_seen)
        self._phases.charge(Phase.PUBLISH)
