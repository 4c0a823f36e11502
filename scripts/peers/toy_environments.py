"""Two small environments whose observations are not vectors, registered with Gymnasium for all systems."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Catch(gymnasium.Env[np.ndarray, int]):
    """A ball falls from a random column; the paddle at the bottom moves left, stays or moves right.

    Observations are images [40, 40, 1] uint8 of 10 x 10 cells. The reward at the end of the nine steps is 1 if the
    paddle is under the ball, otherwise -1. Source: `catch` of bsuite (Osband et al. 2020).
    """

    observation_space = spaces.Box(0, 255, (40, 40, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._row, self._paddle = int(self.np_random.integers(10)), 0, 5
        return self._image(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), 9)
        self._row += 1
        is_over = self._row == 9
        reward = (1.0 if self._paddle == self._ball else -1.0) if is_over else 0.0
        return self._image(), reward, is_over, False, {}

    def _image(self) -> np.ndarray:
        cells = np.zeros((10, 10), dtype=np.uint8)
        cells[self._row, self._ball] = cells[9, self._paddle] = 255
        return cells.repeat(4, axis=0).repeat(4, axis=1)[:, :, None]


class Target(gymnasium.Env[dict[str, Any], np.ndarray]):
    """A point in the plane is moved to a target; in half of the episodes its controls are mirrored.

    Observations are a Dict of the position and the target, each Box(-1, 1, [2]), and `is_mirrored`, Discrete(2). An
    action, Box(-1, 1, [2]), moves the point by at most 0.1 in each direction. The reward of a step is minus the
    distance to the target; an episode is truncated after 50 steps.
    """

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "target": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "is_mirrored": spaces.Discrete(2),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._target = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        self._is_mirrored = int(self.np_random.integers(2))
        return self._observed(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        move = 0.1 * np.clip(action, -1.0, 1.0).astype(np.float32)
        self._position = np.clip(self._position + (-move if self._is_mirrored else move), -1.0, 1.0)
        return self._observed(), -float(np.linalg.norm(self._position - self._target)), False, False, {}

    def _observed(self) -> dict[str, Any]:
        return {"position": self._position.copy(), "target": self._target.copy(), "is_mirrored": self._is_mirrored}


gymnasium.register("Catch-v0", Catch)
gymnasium.register("Target-v0", Target, max_episode_steps=50)
