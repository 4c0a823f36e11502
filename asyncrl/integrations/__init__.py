"""Simulators that step thousands of environments at once, as `gymnasium.vector.VectorEnv` of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.vector import VectorEnv

from asyncrl.config.errors import UsageError


def as_vector_env(env: Any, env_id: str) -> VectorEnv[Any, Any, Any]:
    """What a callable with a parameter `num_envs` returned, as a vectorized environment."""
    if isinstance(env, VectorEnv):
        return env
    raise UsageError(f"{env_id} returned {type(env).__name__}, but a gymnasium.vector.VectorEnv is expected.")


def find_simulator(module: str, name: str) -> Callable[..., Any] | None:
    return None
