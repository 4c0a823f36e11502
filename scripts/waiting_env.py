"""CartPole whose steps take their time elsewhere: the process sleeps, as it does for a simulator on another machine."""

from __future__ import annotations

import time
from typing import Any

import gymnasium


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps in each step."""

    def __init__(self, env: gymnasium.Env[Any, Any], step_ms: float) -> None:
        super().__init__(env)
        self._step_s = step_ms / 1000.0

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return self.env.step(action)


def make(step_ms: float = 5.0, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1 whose steps take `step_ms` more."""
    return Waiting(gymnasium.make("CartPole-v1", **kwargs), step_ms)
