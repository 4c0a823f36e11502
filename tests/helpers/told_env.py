"""An environment that an observer can tell something."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Told(gymnasium.Env[Any, Any]):
    """Rewards each step with the number that it was told last, 0 before; episodes have 5 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, first: float = 0.0) -> None:
        self.reward, self.steps = first, 0

    def set_training_info(self, info: dict[str, Any]) -> None:
        self.reward = info["reward"]

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**arguments)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), self.reward, self.steps == 5, False, {}
