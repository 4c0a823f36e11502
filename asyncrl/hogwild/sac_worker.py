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

from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.schema import TrainConfig
from asyncrl.hogwild.worker import HogwildWorker, WorkerParts
from asyncrl.learner.limiter import ReplayLimiter
from asyncrl.learner.replay_loop import MOST_UPDATES_AT_ONCE
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import SacLearner
from asyncrl.monitoring.phases import Phase
from asyncrl.rollout.replay_worker import ReplaySplit
from asyncrl.rollout.worker import WAIT_S


class HogwildSacWorker(HogwildWorker):
    """Steps and updates in turn, at the asked ratio. Owns environments and replay."""

    def __init__(
        self,
        parts: WorkerParts,
        split: ReplaySplit,
        stripes: ReplayStripes,
        limits: ReplayLimits,
        limiter: ReplayLimiter,
        sampler: ReplaySampler,
        learner: SacLearner,
        config: TrainConfig,
    ) -> None:
        """Takes ownership of the split.

        Args:
            parts: what every worker has.
            split: its environments, all reset; their actions come from the learner's network.
            stripes: its replay.
            limits: how far it may step.
            limiter: decides that, in lock-step with its updates.
            sampler: draws from its replay.
            learner: updates the shared networks.
            config: the run's settings.
        """
        super().__init__(parts, split.group)
        self._split = split
        self._stripes = stripes
        self._limits = limits
        self._limiter = limiter
        self._sampler = sampler
        self._learner = learner
        self._config = config

    def _work(self) -> float:
        """Makes what updates are due, or one step of every environment."""
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

    def _update(self, num_updates: int) -> None:
        batches = self._sampler.sample(num_updates, self._config.batch_size)
        if self._config.normalize_input:
            self._learner.observe(torch.cat([batch.obs for batch in batches]))
        self.phases.charge(Phase.GATHER)
        metrics = self._learner.train(batches, self._clock.env_steps)
        self.note_training(metrics, self._learner.skipped_steps)
        self._limiter.count(num_updates)
        self.phases.charge(Phase.TRAIN)
