"""A user's own environments, by id in Gymnasium's registry (see `docs/environments.md`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium

MakesEnvironment = Callable[..., gymnasium.Env[Any, Any]]
_M = TypeVar("_M", bound=MakesEnvironment)


def register_env(env_id: str, max_episode_steps: int | None = None) -> Callable[[_M], _M]:
    """Decorates an environment's class, or a function that returns an environment, with wrappers for example.

    It calls `gymnasium.register`, so `gymnasium.make` can make the environment, too. To train on it, name
    the module as well: `--env=module:Id`.

    Args:
        env_id: such as `Maze-v0`.
        max_episode_steps: steps after which an episode is truncated; None leaves that to the environment.

    Raises:
        gymnasium.error.Error: `env_id` is no id.
    """

    def register(make: _M) -> _M:
        gymnasium.register(env_id, entry_point=make, max_episode_steps=max_episode_steps)
        return make

    return register
