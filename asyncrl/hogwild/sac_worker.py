"""A worker of asynchronous SAC: environments and a replay of its own, updates of the networks that all share.

consumes  shared networks, always as they are
produces  steps of the shared networks, of the entropy coefficient and of the target critics; counts of steps
waits     for nobody; for WAIT_S when all steps of the run were made
stops     when the run has ended

Who updates the targets: whoever has updated the critics moves them, by the same share as everywhere. So they move once
for each update, as with one process.
"""

from __future__ import annotations

import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.schema import TrainConfig
from asyncrl.hogwild.clock import GlobalClock
from asyncrl.learner.limiter import ReplayLimiter
from asyncrl.learner.off_policy import OffPolicyLearner
from asyncrl.learner.off_policy_trainer import MOST_UPDATES_AT_ONCE
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.rollout.replay_worker import ReplaySplit
from asyncrl.rollout.worker import WAIT_S, WorkerReports


class HogwildSacWorker(WorkerReports):
    """Steps and updates in turn, at the asked ratio. Owns environments and replay."""

    def __init__(
        self,
        worker_idx: int,
        split: ReplaySplit,
        stripes: ReplayStripes,
        limits: ReplayLimits,
        limiter: ReplayLimiter,
        sampler: ReplaySampler,
        learner: OffPolicyLearner,
        config: TrainConfig,
        clock: GlobalClock,
        control: RunControl,
        phases: PhaseTimer,
        arena: Arena,
    ) -> None:
        """Takes ownership of the split.

        Args:
            worker_idx: its number.
            split: its environments, all reset; their actions come from the learner's network.
            stripes: its replay.
            limits: how far it may step.
            limiter: decides that, in lock-step with its updates.
            sampler: draws from its replay.
            learner: updates the shared networks.
            config: the run's settings.
            clock: environment steps of all workers.
            control: the run's words.
            phases: its time goes here.
            arena: the memory of its own, which goes with it.
        """
        super().__init__(worker_idx, [split.group], control, phases)
        self._split = split
        self._stripes = stripes
        self._limits = limits
        self._limiter = limiter
        self._sampler = sampler
        self._learner = learner
        self._config = config
        self._clock = clock
        self._arena = arena

    def poll(self) -> float:
        """Makes what updates are due, or one step of every environment.

        Returns:
            Seconds to wait, unless woken, before polling again.
        """
        if self._clock.is_over:
            self._clock.rest(self.worker_idx)
            return WAIT_S
        num_updates = min(self._limiter.due, MOST_UPDATES_AT_ONCE)
        if num_updates > 0:
            self._update(num_updates)
            return 0.0
        self._limiter.release()
        split = self._split
        if not self._limits.may_step(split.split_idx, split.num_rows, self._stripes.total_env_steps()):
            return WAIT_S
        split.ask()
        self.count_steps(split.advance())
        self.phases.charge(Phase.OTHER)
        return 0.0

    def close(self) -> None:
        """Closes the environments and gives the memory back."""
        super().close()
        self._arena.close()

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        return Phase.WAIT_UPDATES

    def _update(self, num_updates: int) -> None:
        batches = self._sampler.sample(num_updates, self._config.batch_size)
        if self._config.normalize_input:
            self._learner.observe(torch.cat([batch.obs for batch in batches]))
        self.phases.charge(Phase.GATHER)
        metrics = self._learner.train(batches, self._clock.env_steps)
        self.note_training(metrics, self._learner.skipped_steps)
        self._limiter.count(num_updates)
        self.phases.charge(Phase.TRAIN)
