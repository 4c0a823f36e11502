"""Publishes weights, late by a given number of versions where an experiment asks for it."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.weights import WeightsChannel


class WeightsPublisher:
    """Writes blocks of weights into the channel: the newest that is at least `forced_lag` versions old."""

    def __init__(self, channel: WeightsChannel, forced_lag: int) -> None:
        """With `forced_lag` 0 every block goes out at once."""
        self._channel = channel
        self._forced_lag = forced_lag
        self._held: deque[tuple[int, npt.NDArray[np.float32]]] = deque()

    def publish(self, block: npt.NDArray[np.float32], version: int) -> None:
        """Publishes `block [N] float32` of `version`, or the older one whose time has come."""
        if self._forced_lag == 0:
            self._channel.publish(block, version)
            return
        self._held.append((version, block.copy()))
        while len(self._held) > 1 and self._held[1][0] <= version - self._forced_lag:
            self._held.popleft()
        held_version, held_block = self._held[0]
        self._channel.publish(held_block, held_version)
