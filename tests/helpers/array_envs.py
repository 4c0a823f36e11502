"""Environments that observe arrays of two to four axes: images, windows of time series, boards; `array_envs:NAME`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class LitHalf(gymnasium.Env):
    """One half of an array is lit; a choice is right if it names the half. An episode has ten steps.

    Args:
        shape, dtype: of the array.
        high: the upper bound of its space, 0 the lower one; None for a space without bounds.
        lit: number of the lit half.
        key: the array's key in a Dict observation; None for a Box.
    """

    def __init__(
        self,
        shape: Any = (30, 10),
        dtype: str = "float32",
        high: float | None = None,
        lit: float = 1.0,
        key: str | None = None,
    ) -> None:
        low, high = (-np.inf, np.inf) if high is None else (0, high)
        self._box = spaces.Box(low, high, tuple(shape), np.dtype(dtype))
        self._lit, self._key = lit, key
        numbers = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = self._box if key is None else spaces.Dict({key: self._box, "numbers": numbers})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._show(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._side) / 10.0
        self._num_steps += 1
        return self._show(), reward, self._num_steps == 10, False, {}

    def _show(self) -> Any:
        self._side = int(self.np_random.integers(2))
        array = np.zeros(self._box.shape, self._box.dtype)
        half = array.shape[0] // 2
        array[half * self._side : half * (self._side + 1)] = self._lit
        return array if self._key is None else {self._key: array, "numbers": np.zeros(2, np.float32)}
