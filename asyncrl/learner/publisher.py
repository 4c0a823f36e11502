"""Publishes weights, late by a given number of versions where an experiment asks for it."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.runtime.processes import RunFailed


class WeightsPublisher:
    """Writes blocks of weights into the channel: the newest that is at least `forced_lag` versions old."""

    def __init__(self, channel: WeightsChannel, forced_lag: int) -> None:
        """With `forced_lag` 0 every block goes out at once."""
        self._channel = channel
        self._forced_lag = forced_lag
        self._held: deque[tuple[Tensor, int, int]] = deque()

    def publish(self, block: Tensor, version: int, env_steps: int) -> None:
        """Publishes `block [N] float32` of `version`, or the older one whose time has come.

        Args:
            block: weights and statistics, on the learner's device.
            version: their policy version.
            env_steps: environment steps that they were trained on.

        Raises:
            RunFailed: a number in the block is not finite; nobody is to act with it.
        """
        if not torch.isfinite(block).all():
            raise RunFailed(f"weights or statistics of policy version {version} are not finite", is_final=True)
        if self._forced_lag > 0:
            self._held.append((block.clone(), version, env_steps))
            while len(self._held) > 1 and self._held[1][1] <= version - self._forced_lag:
                self._held.popleft()
            block, version, env_steps = self._held[0]
        self._channel.publish(block.cpu().numpy(), version, env_steps, on_device=block)
