"""Pendulum without its velocity, which only a policy with memory can tell, from earlier angles."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import TransformObservation


def make(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Pendulum-v1 whose observations are cosine and sine of the angle alone."""
    env = gymnasium.make("Pendulum-v1", **kwargs)
    angle = gymnasium.spaces.Box(-1.0, 1.0, (2,), "float32")
    return TransformObservation(env, lambda observation: observation[:2], angle)
