"""Registers a user's environments in Gymnasium's registry (see `docs/environments.md`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium

MakesEnvironment = Callable[..., gymnasium.Env[Any, Any]]
_M = TypeVar("_M", bound=MakesEnvironment)


def register_env(env_id: str, max_episode_steps: int | None = None) -> Callable[[_M], _M]:
    """Decorator that registers an environment's class, or a function that returns an environment.

    It calls `gymnasium.register`, so `gymnasium.make` can make the environment as well. Keyword arguments of the class
    or function are set with `--env_kwargs`. To train on the environment, name its module: `--env=module:Id`; every
    process of the run imports it.

    Args:
        env_id: an id such as `Maze-v0`.
        max_episode_steps: number of steps after which an episode is truncated; None for no limit, or if the environment
            truncates episodes itself.

    Returns:
        The decorator, which returns the class or function unchanged.

    Raises:
        gymnasium.error.Error: `env_id` is not a valid id.
    """

    def register(make: _M) -> _M:
        gymnasium.register(env_id, entry_point=make, max_episode_steps=max_episode_steps)
        return make

    return register
