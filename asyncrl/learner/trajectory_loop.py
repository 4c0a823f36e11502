"""Training from trajectories: one dataset after the other.

consumes  columns of full slots, or of environments on the learner's device (`asyncrl.modes.tensors`)
produces  published weights
waits     for the next dataset
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from asyncrl.buffers.control import LAST_TURN, PolicyChange, TrainedSteps
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.slot_ledger import Columns
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import LearnerContext, WeightsPublisher
from asyncrl.observers.reports import LagMetrics, LearnerReport, Phase

_LOOK_EVERY_S = 0.2


class DatasetSource(Protocol):
    """Where the columns of datasets come from: slots of rollout workers, or environments on the learner's device."""

    @property
    def ready(self) -> Collection[int]:
        """Slots that wait to be trained on."""

    @property
    def dropped_samples(self) -> int:
        """Samples dropped so far because they were too old, or their worker died."""

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """The columns of the next dataset, waiting for them at most `timeout_s`; None if there are too few."""

    def begin_dataset(self) -> None:
        """With a fixed lag: the weights for collecting the next dataset are published."""

    def release(self, columns: list[Columns]) -> None:
        """Frees a dataset, after the weights trained on it were published."""


class DatasetRoom(Protocol):
    """Where columns become a dataset on the learner's device."""

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        """The dataset, which the next one overwrites."""

    def lag(self, learner_version: int) -> LagMetrics:
        """Age of its samples."""


@dataclass(frozen=True)
class TrainedBefore:
    """What a run was trained on before this process.

    Attributes:
        env_steps: environment steps; of several policies this policy's own.
        num_samples: samples, counting each pass.
        agent_steps: samples, counting each once.
        last_turn: turn of the last `PolicyChange` that had one; None without.
    """

    env_steps: int = 0
    num_samples: int = 0
    agent_steps: int = 0
    last_turn: int | None = None


class TrajectoryLoop:
    """Trains one dataset after the other. Owns the learner and its counters.

    Attributes:
        own_env_steps: environment steps that this process has trained on since it was started.
    """

    def __init__(
        self,
        learner: OnPolicyLearner,
        source: DatasetSource,
        batcher: DatasetRoom,
        publisher: WeightsPublisher,
        context: LearnerContext,
        trained: TrainedBefore = TrainedBefore(),
        look: Callable[[], None] | None = None,
        policies: TrainedSteps | None = None,
        read_weights: Callable[[int], Tensor | None] | None = None,
        publishes_passes: bool = True,
    ) -> None:
        """Publishes the first weights; samples may be collected after that.

        Args:
            learner: in the state to begin with.
            source: the columns of datasets.
            batcher: makes a dataset of them.
            publisher: publishes weights.
            context: what the learner's parts share.
            trained: what was trained on before.
            look: called a few times a second during an update, for other roles of the process.
            policies: the steps of all policies, if there are several.
            read_weights: returns the block of a source of `PolicyChange`, None without one.
            publishes_passes: False to publish once for each dataset, because nobody collects while it is trained on.
        """
        config, env_steps = context.config, trained.env_steps
        self._control = context.control
        self._stopping = context.stopping
        self._look = look
        self._looked_at = time.monotonic()
        self._has_fixed_lag = config.async_rl and config.fixed_lag
        self._publishes_passes = publishes_passes and not self._has_fixed_lag
        self._agreement = context.agreement
        self._changes = self._agreement.hyperparameters.changes()
        self._changed_at = 0  # policy version of the last change
        self._learner = learner
        self._source = source
        self._batcher = batcher
        self._publisher = publisher
        self._config = config
        self._phases = context.phases
        self._block = torch.empty(learner.block_size, device=learner.device)
        self._policies = policies
        self._read_weights, self._last_turn = read_weights, trained.last_turn
        self._env_steps = env_steps
        self.own_env_steps = 0
        self._is_cut_short = False
        self._first_env_steps = env_steps
        self._env_steps_seen = env_steps  # with those of the dataset that is being trained on
        if policies is not None:
            policies.record(env_steps, trained.agent_steps)
        self._num_samples, self._agent_steps = trained.num_samples, trained.agent_steps
        self._report_started = time.monotonic()
        self._publish()

    @property
    def env_steps(self) -> int:
        """Environment steps of the run that were trained on, by all policies."""
        return self._env_steps + (0 if self._policies is None else self._policies.env_steps_by_others)

    @property
    def has_more_to_learn(self) -> bool:
        """Whether steps of the run, or passes over them, are left to train."""
        return self._is_cut_short or self.env_steps < self._config.train_for_env_steps

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Trains on the next dataset if there is one within `timeout_s`.

        Weights are published before the slots of the dataset are freed. So whoever is granted a slot acts with weights
        that were trained on its earlier samples. With a fixed lag they are published before the next dataset is begun,
        when this one is complete and nobody collects.
        """
        learner, control, phases, agreement = self._learner, self._control, self._phases, self._agreement
        has_ranks = agreement.ranks.num_ranks > 1
        if not has_ranks and (change := control.take_change()) is not None:
            self._carry_out(change)
        columns = self._source.take_dataset(learner.policy_version, timeout_s)
        phases.charge(Phase.WAIT_SAMPLES)
        if columns is None:
            return None
        dataset = self._batcher.collect(columns)
        num_steps, num_valid = dataset.num_env_steps, dataset.num_valid
        lag = self._batcher.lag(learner.policy_version) if num_valid > 0 else None
        phases.charge(Phase.COPY)
        if self._has_fixed_lag:
            self._publish()
            self._source.begin_dataset()
        is_over, own_env_steps = False, self.own_env_steps + num_steps
        if has_ranks:
            turn = agreement.sync_ranks(1, own_env_steps)
            phases.charge(Phase.WAIT_RANKS)
            is_over, num_steps = turn.is_over, self._first_env_steps + turn.env_steps - self._env_steps
            if turn.new_values is not None:
                self._adopt(turn.new_values)
        # Without samples all environments failed, or all agents waited. Other ranks may have samples.
        if is_over or (num_steps == 0 if has_ranks else num_valid == 0):
            self._source.release(columns)
            return None
        self.own_env_steps = own_env_steps
        self._env_steps_seen = self.env_steps + num_steps
        num_passes, metrics, self._is_cut_short = 0, None, False
        control.record_minibatch(0, 1)
        if not self._config.debug_skip_training:
            num_passes = self._train(dataset)
            if not self._publishes_passes and not self._has_fixed_lag:
                self._publish()
            metrics = learner.take_metrics()
        control.record_minibatch(0, 0)
        phases.charge(Phase.TRAIN)
        if has_ranks:
            phases.move(agreement.ranks.take_seconds(), Phase.TRAIN, Phase.EXCHANGE)
        self._source.release(columns)
        self._env_steps += num_steps
        self._num_samples += num_steps * num_passes
        self._agent_steps += num_valid
        if self._policies is not None:
            self._policies.record(self._env_steps, self._agent_steps)
        phases.charge(Phase.OTHER)
        now, spent = time.monotonic(), phases.take()
        report = LearnerReport(
            policy_idx=0 if self._policies is None else self._policies.policy_idx,
            env_steps=self.env_steps,
            num_samples=self._num_samples,
            agent_steps=self._agent_steps,
            policy_env_steps=self._env_steps if self._policies is None else self._policies.share,
            num_updates=learner.policy_version - learner.versions_left_out,
            wall_s=now - self._report_started,
            train=metrics,
            lag=lag,
            slots_ready=len(self._source.ready),
            dropped_samples=self._source.dropped_samples,
            skipped_steps=learner.skipped_steps,
            phases=spent,
            notice=learner.notice,
            hyperparameters=self._changes,
            hyperparameters_version=self._changed_at,
        )
        self._report_started, learner.notice = now, None
        return report

    def _train(self, dataset: Dataset) -> int:
        """Trains on a dataset and publishes after each pass; returns the passes, fewer if the run must stop."""
        num_passes, control, agreement = 0, self._control, self._agreement
        for progress in self._learner.updates(dataset, max(self.env_steps, control.steps_by_time)):
            control.record_minibatch(progress.num_done, progress.num_total)
            if self._look is not None and time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
                self._look()
                self._looked_at = time.monotonic()
            if not progress.ends_pass:
                continue
            if self._publishes_passes:
                self._publish()
            num_passes += 1
            if progress.is_last:  # asking the ranks would not change anything
                continue
            is_cut_short = self._stopping.is_met
            if agreement.ranks.num_ranks > 1:
                is_cut_short = agreement.should_stop(is_cut_short)
                self._phases.charge(Phase.WAIT_RANKS)
            if is_cut_short:
                self._is_cut_short = True
                break
        return num_passes

    def flush(self) -> None:
        """With a fixed lag: publishes the weights trained on the last dataset, which no later one does."""
        if self._has_fixed_lag:
            self._publish()

    def take_report(self) -> None:
        """Each dataset was reported when it was trained on."""

    def state(self) -> LearnerState:
        """The state that continues the training, without slots."""
        state = self._learner.state_dict()
        counted = {"num_samples": self._num_samples, "agent_steps": self._agent_steps}
        if self._policies is not None:
            counted["policy_env_steps"] = self._env_steps
        if self._last_turn is not None:
            counted[LAST_TURN] = self._last_turn
        return LearnerState(state.model, state.optimizer, {**state.scalars, **counted})

    def replay(self) -> None:
        """Trajectories are used once."""

    def _carry_out(self, change: PolicyChange) -> None:
        """Adopts new hyperparameters, and takes over weights if the change says so."""
        self._agreement.hyperparameters = self._agreement.hyperparameters.updated_by(change.new_values)
        self._adopt(change.new_values)
        if change.source is not None and self._read_weights is not None:
            block = self._read_weights(change.source)
            if block is not None:
                self._learner.adopt_weights(block)
                self._publish()
        if change.turn is not None:
            self._last_turn = change.turn

    def _adopt(self, new_values: Hyperparameters) -> None:
        self._learner.set_hyperparameters(new_values)
        self._changes, self._changed_at = self._agreement.hyperparameters.changes(), self._learner.policy_version

    def _publish(self) -> None:
        self._phases.charge(Phase.TRAIN)
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._learner.policy_version, self._env_steps_seen)
        self._phases.charge(Phase.PUBLISH)
