"""Training from the replay: as many updates as the steps that were collected allow, and never more.

consumes  rows of the replay (published by the rollout workers)
produces  published weights, limits up to which the rollout workers may step
waits     for steps, when it has made all updates that are due: until woken by a rollout worker or for the timeout
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import torch

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.limiter import ReplayLimiter
from asyncrl.learner.ranks import RankConsensus, Ranks
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.threads import ThreadChoice
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import LearnerReport, ReplayMetrics, SacMetrics, mean_metrics
from asyncrl.runtime.checkpoint import KeptReplay

MOST_UPDATES_AT_ONCE = 16  # between two publications
_REPORT_EVERY_S = 0.25


class ReplayLoop:
    """Keeps learning and collecting at the asked ratio. Owns the learner, the limits and their counters."""

    def __init__(
        self,
        learner: SacLearner,
        stripes: ReplayStripes,
        sampler: ReplaySampler,
        limiter: ReplayLimiter,
        publisher: WeightsPublisher,
        waker: Waker,
        workers: Sequence[Waker],
        config: TrainConfig,
        phases: PhaseTimer,
        first_env_steps: int = 0,
        threads: ThreadChoice | None = None,
        agreement: RankConsensus | None = None,
        most_env_steps: int | None = None,
    ) -> None:
        """Publishes the first weights and limits; workers may step from then on.

        Args:
            learner: what trains, already in the state to begin with.
            stripes: the replay, with what a checkpoint kept of it.
            sampler: draws from it.
            limiter: says who may go on.
            publisher: takes weights.
            waker: wakes this process.
            workers: wakes the rollout workers.
            config: the run's settings.
            phases: the learner's time goes here.
            first_env_steps: environment steps of the run before this process; what the replay held then is of them.
            threads: chooses how many threads an update has; None where that is settled.
            agreement: what all ranks go by.
            most_env_steps: environment steps that this process collects; those of the whole run if not given.
        """
        self._agreement = agreement or RankConsensus(Ranks())
        self._changes = self._agreement.hyperparameters.changes()
        self._changed_at = 0  # policy version of the last change
        self._learner = learner
        self._stripes = stripes
        self._sampler = sampler
        self._limiter = limiter
        self._publisher = publisher
        self._waker = waker
        self._workers = workers
        self._config = config
        self._phases = phases
        self._threads = threads
        self._block = torch.empty(learner.block_size, device=learner.device)
        self._first_env_steps = first_env_steps
        self._steps_before = stripes.total_env_steps()
        if most_env_steps is None:
            most_env_steps = config.train_for_env_steps - first_env_steps
        self._most_env_steps = most_env_steps
        self._unreported: list[SacMetrics] = []
        self._report_started = time.monotonic()
        self._publish()
        self._release()

    @property
    def env_steps(self) -> int:
        """Environment steps that were collected, in all the run; with other ranks, as of their last turn."""
        is_alone = self._agreement.ranks.num_ranks == 1
        return self._first_env_steps + (self.own_env_steps if is_alone else self._agreement.env_steps)

    @property
    def own_env_steps(self) -> int:
        """Environment steps that were collected here since this process was started."""
        return self._stripes.total_env_steps() - self._steps_before

    @property
    def has_more_to_learn(self) -> bool:
        """Whether steps are to be collected, or updates due for those that were."""
        return not self._agreement.is_over and (self._agreement.ranks.num_ranks > 1 or not self._is_done)

    @property
    def _is_done(self) -> bool:
        return self.own_env_steps >= self._most_env_steps and self._limiter.due == 0

    def train_once(self, timeout_s: float) -> LearnerReport | None:
        """Makes some of the updates that are due, or waits for steps at most `timeout_s`."""
        num_updates, agreement = min(self._limiter.due, MOST_UPDATES_AT_ONCE), self._agreement
        new_values = None
        if num_updates == 0 and not (agreement.ranks.num_ranks > 1 and self._is_done):
            self._release()
            self._waker.wait(timeout_s)
            self._phases.charge(Phase.WAIT_SAMPLES)
        elif agreement.ranks.num_ranks > 1:
            # How many updates all ranks make now. A rank without due updates makes as many as the others.
            turn = agreement.take_turn(num_updates, self.own_env_steps, is_done=num_updates == 0)
            self._phases.charge(Phase.WAIT_RANKS)
            num_updates, new_values = 0 if turn.is_over else turn.num_updates, turn.new_values
        else:
            new_values = agreement.take_hyperparameters()
        if new_values is not None:
            self._learner.set_hyperparameters(new_values)
            if new_values.gamma is not None:
                self._sampler.gamma = new_values.gamma
            self._changes, self._changed_at = agreement.hyperparameters.changes(), self._learner.policy_version
        if num_updates > 0:
            batches = self._sampler.sample(num_updates, self._config.batch_size)
            if self._config.normalize_input:
                self._learner.observe(torch.cat([batch.obs for batch in batches]))
            self._phases.charge(Phase.GATHER)
            with self._threads.updating(num_updates) if self._threads is not None else contextlib.nullcontext():
                metrics = self._learner.train(batches, self.env_steps)
            if metrics is not None:
                self._unreported.append(metrics)
            self._phases.charge(Phase.TRAIN)
            if agreement.ranks.num_ranks > 1:
                self._phases.move(agreement.ranks.take_seconds(), Phase.TRAIN, Phase.EXCHANGE)
            self._limiter.count(num_updates)
            self._publish()
            self._release()
        if time.monotonic() - self._report_started < _REPORT_EVERY_S:
            return None
        return self.take_report()

    def settle(self) -> None:
        """Nothing: nobody else trains."""

    def take_report(self) -> LearnerReport | None:
        """What was done since the last report."""
        now, phases = time.monotonic(), self._phases.take()
        num_updates = self._learner.policy_version
        report = LearnerReport(
            env_steps=self.env_steps,
            num_samples=num_updates * self._config.batch_size,
            num_updates=num_updates,
            policy_version=num_updates,
            wall_s=now - self._report_started,
            busy_s=busy_s(phases),
            train=mean_metrics(self._unreported),
            skipped_steps=self._learner.skipped_steps,
            replay=ReplayMetrics(
                size=self._stripes.num_held_steps,
                updates_per_env_step=self._limiter.achieved_ratio,
            ),
            phases=phases,
            notice=self._learner.notice,
            hyperparameters=self._changes,
            hyperparameters_version=self._changed_at,
        )
        self._report_started, self._unreported, self._learner.notice = now, [], None
        return report

    def state(self) -> LearnerState:
        """All that continues the training; what the limiter has counted goes on only with the replay."""
        state = self._learner.state_dict()
        optimizer = {**state.optimizer, "replay_generator": self._sampler.generator.get_state()}
        limiter = {f"limiter_{name}": value for name, value in self._limiter.state_dict().items()}
        about = {
            "replay_splits": self._stripes.num_splits,
            "replay_envs": self._stripes.num_envs,
            "updates_due": self._limiter.due,
        }
        return LearnerState(state.model, optimizer, {**state.scalars, **limiter, **about})

    def replay(self) -> KeptReplay | None:
        """The rows that are whole, if they are to be kept."""
        return self._stripes.content() if self._config.save_replay else None

    def _publish(self) -> None:
        block = self._learner.publication(self._block)
        self._publisher.publish(block, self._learner.policy_version, self.env_steps)
        self._phases.charge(Phase.PUBLISH)

    def _release(self) -> None:
        """Lets the rollout workers step as far as the updates allow, and wakes them if that is further than before."""
        if self._limiter.release():
            for worker in self._workers:
                worker.wake()
