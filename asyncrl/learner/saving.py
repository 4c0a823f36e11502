"""Which checkpoints are due, and where each goes. Knows nothing of training."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from asyncrl.config.schema import TrainConfig
from asyncrl.monitoring.reports import CheckpointReport
from asyncrl.runtime import checkpoint
from asyncrl.runtime.checkpoint import Checkpoint
from asyncrl.runtime.processes import RunFailed

MOST_FAILED = 3
"""Checkpoints in a row that cannot be written before the run ends: it would go on for nothing."""

log = logging.getLogger(__name__)


class CheckpointSaver:
    """Keeps the newest checkpoints, milestones and the best. Owns the run's folder of checkpoints."""

    def __init__(self, folder: Path, config: TrainConfig, env_steps: int) -> None:
        """Counts from now, and from `env_steps` trained before."""
        self._folder = folder
        self._keep = config.keep_checkpoints
        self._every_s = math.inf if config.checkpoint_resets else config.save_every_s
        self._every_steps = config.save_every_env_steps
        self._milestones_s = config.save_milestones_s or math.inf
        self._saved_at = self._milestone_at = time.monotonic()
        self._saved_steps = env_steps
        self._num_failed = 0

    def is_due(self, env_steps: int) -> bool:
        """Whether the newest state should be saved, by time or by steps."""
        if time.monotonic() - self._saved_at >= self._every_s:
            return True
        every = self._every_steps
        return every is not None and env_steps // every > self._saved_steps // every

    @property
    def is_milestone_due(self) -> bool:
        """Whether a checkpoint should be saved for ever."""
        return time.monotonic() - self._milestone_at >= self._milestones_s

    def save(self, env_steps: int, content: Callable[[], Checkpoint]) -> CheckpointReport:
        """Saves the newest state; a failure to write is reported, not raised.

        Raises:
            RunFailed: this and those before it could not be written.
        """
        self._saved_at, self._saved_steps = time.monotonic(), env_steps
        return self._write("newest", self._folder, env_steps, content, self._keep)

    def save_milestone(self, env_steps: int, content: Callable[[], Checkpoint]) -> CheckpointReport:
        """Saves a checkpoint that stays. The next one is due at the next multiple of the interval."""
        now = time.monotonic()
        self._milestone_at = now - (now - self._milestone_at) % self._milestones_s
        return self._write("milestone", self._folder / checkpoint.MILESTONES, env_steps, content, None)

    def save_best(self, env_steps: int, content: Callable[[], Checkpoint], mean_return: float) -> CheckpointReport:
        """Saves the best so far in the place of the one before."""

        def best() -> Checkpoint:
            plain = content()
            return Checkpoint(plain.model, plain.optimizer, {**plain.state, "mean_return": mean_return})

        report = self._write("best", self._folder / checkpoint.BEST, env_steps, best, 1)
        return dataclasses.replace(report, mean_return=mean_return)

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint there is."""
        return checkpoint.latest(self._folder)

    def _write(
        self, kind: str, folder: Path, env_steps: int, content: Callable[[], Checkpoint], keep: int | None
    ) -> CheckpointReport:
        try:
            made = content()
            _check_finite(made)
            path = checkpoint.save(folder, made, env_steps, keep)
        except (checkpoint.CheckpointError, MemoryError) as error:
            reason = str(error) or "there is not enough memory to make it"
            log.error("%s", reason)
            self._num_failed += 1
            if self._num_failed == MOST_FAILED:
                raise RunFailed(
                    f"{MOST_FAILED} checkpoints in a row could not be saved, the last: {reason}", is_final=True
                ) from error
            return CheckpointReport(str(folder), env_steps, reason, kind)
        self._num_failed = 0
        return CheckpointReport(str(path), env_steps, None, kind)


def _check_finite(content: Checkpoint) -> None:
    for name, tensor in (*content.model.items(), *content.optimizer.items()):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise checkpoint.CheckpointError(f"{name} is not finite, so no run could resume from this checkpoint")
