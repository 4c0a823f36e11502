"""Training from the replay: as many updates as the collected steps allow.

consumes  rows of the replay (published by the rollout workers)
produces  published weights, limits up to which the rollout workers may step
waits     for steps, when no update is due: until woken by a rollout worker or for the timeout
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import torch

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimiter, ReplayStripes
from asyncrl.learner.prioritized_sampler import PrioritizedSampler, importance_exponent
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.learner.state import LearnerState
from asyncrl.learner.threads import ThreadChoice
from asyncrl.learner.worker import LearnerContext, WeightsPublisher
from asyncrl.observers.reports import (
    LearnerReport,
    Phase,
    ReplayMetrics,
    SampleAges,
    UpdateMetrics,
    mean_metrics,
)
from asyncrl.storage.checkpoint import SavedReplay

MOST_UPDATES_AT_ONCE = 16  # between two publications
_REPORT_EVERY_S = 0.1


class ReplayLoop:
    """Learns and lets workers collect at the configured ratio. Owns the learner, the limits and their counters."""

    def __init__(
        self,
        learner: ReplayLearner,
        stripes: ReplayStripes,
        sampler: ReplaySampler,
        limiter: ReplayLimiter,
        publisher: WeightsPublisher,
        waker: Waker | None,
        workers: Sequence[Waker],
        context: LearnerContext,
        first_env_steps: int = 0,
        threads: ThreadChoice | None = None,
        most_env_steps: int | None = None,
        return_scale: ReturnScale | None = None,
    ) -> None:
        """Publishes the first weights; workers may step after the first call of `train_once`.

        The learner is in the state to begin with, and the stripes have the rows that a checkpoint stored.
        `first_env_steps` counts the steps of the run before this process, those rows among them; `most_env_steps` is
        the number of steps that this process collects, None for all that are left. With `threads` the number of threads
        of an update is chosen by measurement; with `return_scale` rewards are divided by its divisor.
        """
        config, control = context.config, context.control
        self._agreement = context.agreement
        self._changes = self._agreement.hyperparameters.changes()
        self._changed_at = 0  # policy version of the last change
        self._learner = learner
        self._stripes = stripes
        self._sampler = sampler
        self._prioritized = sampler if isinstance(sampler, PrioritizedSampler) else None
        self._limiter = limiter
        self._publisher = publisher
        self._waker = waker
        self._workers = workers
        self._control = control
        self._config = config
        self._phases = context.phases
        self._threads = threads
        self._return_scale = return_scale
        self._block = torch.empty(learner.block_size, device=learner.device)
        self._first_env_steps = first_env_steps
        self._steps_before = stripes.total_env_steps()
        if most_env_steps is None:
            most_env_steps = config.train_for_env_steps - first_env_steps
        self._stop_at = self._steps_before + most_env_steps  # as the stripes count
        self._unreported: list[UpdateMetrics] = []
        self._phases.restart()  # as the first report may be a tenth of a second later
        self._report_started = time.monotonic()
        learner.set_exploration(max(first_env_steps, control.steps_by_time))
        self._publish()

    @property
    def env_steps(self) -> int:
        """Environment steps of the run that were collected; with other ranks, as of their last turn."""
        if self._agreement.ranks.num_ranks > 1:
            return self._first_env_steps + self._agreement.env_steps
        return self._first_env_steps + self._stripes.total_env_steps() - self._steps_before

    @property
    def own_env_steps(self) -> int:
        """Environment steps that were collected here since this process was started."""
        return self._stripes.total_env_steps() - self._steps_before

    @property
    def has_more_to_learn(self) -> bool:
        """Whether steps are left to collect, or updates are due."""
        if self._agreement.ranks.num_ranks > 1 or self._agreement.is_over:
            return not self._agreement.is_over
        return self._stripes.total_env_steps() < self._stop_at or self._limiter.due > 0

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Makes some of the updates that are due, or waits for steps at most `timeout_s`."""
        due, agreement, phases = self._limiter.due, self._agreement, self._phases
        is_trial = self._threads is not None and self._threads.is_trying
        num_updates, new_values = min(due, 1 if is_trial else MOST_UPDATES_AT_ONCE), None
        has_ranks = agreement.ranks.num_ranks > 1
        is_done = due == 0 and self._stripes.total_env_steps() >= self._stop_at
        must_wait = due == 0 and not (has_ranks and is_done)
        if has_ranks and not must_wait:
            # All ranks make the same number of updates; one without due updates follows the others.
            turn = agreement.sync_ranks(num_updates, self.own_env_steps, is_done=due == 0)
            phases.charge(Phase.WAIT_RANKS)
            num_updates, new_values = 0 if turn.is_over else turn.num_updates, turn.new_values
        elif not must_wait:
            change = self._control.take_change()
            new_values = None if change is None else change.new_values
            if new_values is not None:
                agreement.hyperparameters = agreement.hyperparameters.updated_by(new_values)
        if new_values is not None:
            self._learner.set_hyperparameters(new_values)
            if new_values.gamma is not None:
                self._sampler.gamma = new_values.gamma
            self._changes, self._changed_at = agreement.hyperparameters.changes(), self._learner.policy_version
        if num_updates > 0:
            self._update(num_updates)
            if has_ranks:
                phases.move(agreement.ranks.take_seconds(), Phase.TRAIN, Phase.EXCHANGE)
            self._limiter.num_updates += num_updates
            self._publish()
        # The rollout workers may now step as far as the updates allow.
        if self._limiter.release():
            for worker in self._workers:
                worker.wake()
        if must_wait:
            if self._waker is not None:  # rows are written by another process
                self._waker.wait(timeout_s)
            phases.charge(Phase.WAIT_SAMPLES)
        return self.take_report() if time.monotonic() - self._report_started >= _REPORT_EVERY_S else None

    def _update(self, num_updates: int) -> None:
        """Draws a batch for each update, and trains on them."""
        scheduled_steps = max(self.env_steps, self._control.steps_by_time)
        if self._prioritized is not None:
            self._prioritized.beta = importance_exponent(self._config, scheduled_steps)
        if self._return_scale is not None:
            self._return_scale.update(self._sampler.gamma, self._config.reward_scale, self._config.reward_clip)
            self._sampler.reward_divisor = self._return_scale.divisor
        batches = self._sampler.sample(num_updates, self._config.batch_size)
        self._sampler.record_ages(self._learner.policy_version)
        if self._config.normalize_input:
            self._learner.observe(torch.cat([batch.obs for batch in batches]))
        self._phases.charge(Phase.GATHER)
        with self._threads.updating(num_updates) if self._threads is not None else contextlib.nullcontext():
            metrics = self._learner.train(batches, scheduled_steps)
        if self._prioritized is not None and self._learner.td_errors is not None:
            self._prioritized.set_errors(self._learner.td_errors)
        if metrics is not None:
            self._unreported.append(metrics)
        self._phases.charge(Phase.TRAIN)

    def flush(self) -> None:
        """Each update was published."""

    def take_report(self) -> LearnerReport:
        """Work since the last report."""
        now, phases = time.monotonic(), self._phases.take()
        num_updates = self._learner.policy_version
        report = LearnerReport(
            env_steps=self.env_steps,
            num_samples=num_updates * self._config.batch_size,
            num_updates=num_updates,
            wall_s=now - self._report_started,
            train=mean_metrics(self._unreported),
            skipped_steps=self._learner.skipped_steps,
            replay=ReplayMetrics(
                size=self._stripes.num_held_steps,
                updates_per_env_step=self._limiter.achieved_ratio,
            ),
            ages=self._sampler.ages,
            phases=phases,
            notice=self._learner.notice,
            hyperparameters=self._changes,
            hyperparameters_version=self._changed_at,
        )
        self._report_started, self._unreported, self._learner.notice = now, [], None
        self._sampler.ages = SampleAges()
        return report

    def state(self) -> LearnerState:
        """The state that continues the training. The limiter's counts are used only if the replay is restored, too."""
        state = self._learner.state_dict()
        optimizer = {**state.optimizer, "replay_generator": self._sampler.generator.get_state()}
        own = {f"limiter_{name}": value for name, value in self._limiter.state_dict().items()}
        if self._return_scale is not None:
            own |= {f"return_{name}": value for name, value in self._return_scale.state_dict().items()}
        about: dict[str, int | float] = {"updates_due": self._limiter.due}
        if self._prioritized is not None:
            about["max_priority"] = self._prioritized.max_priority
        return LearnerState(state.model, optimizer, {**state.scalars, **own, **about})

    def replay(self) -> SavedReplay | None:
        """The complete rows of the replay, if `save_replay` is set."""
        if not self._config.save_replay:
            return None
        if self._prioritized is not None:
            self._prioritized.refresh()
        return self._stripes.content()

    def _publish(self) -> None:
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._learner.policy_version, self.env_steps)
        self._phases.charge(Phase.PUBLISH)
