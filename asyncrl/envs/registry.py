"""Registers a user's environments in Gymnasium's registry (see `docs/environments.md`), and finds registered ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium

from asyncrl.config.presets import preset_for
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.atari import Preprocessed, id_of_game
from asyncrl.envs.single import SingleEnv

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


def environment_inside(env: gymnasium.Env[Any, Any]) -> tuple[str, bool]:
    """The registered environment inside wrappers and functions, and whether they leave its spaces unchanged.

    The preprocessing that a run adds to games is not counted.

    Returns:
        Its id, empty if it is not registered or has several agents; and whether the spaces are the same.
    """
    if isinstance(env, AgentsEnv):
        return "", True
    if isinstance(env, Preprocessed):
        env = env.game
    inner: Any = env.unwrapped
    if isinstance(inner, SingleEnv):
        vector_env: Any = inner.vector_env
        inner = vector_env.unwrapped
        own = (inner.single_observation_space, inner.single_action_space)
        inner_id = str(getattr(inner.spec, "id", ""))
    else:
        own = (inner.observation_space, inner.action_space)
        inner_id = id_of_game(env) or _registered_id(inner)
    return inner_id, own == (env.observation_space, env.action_space)


def _registered_id(inner: gymnasium.Env[Any, Any]) -> str:
    """The id with which an environment was made, or if that names a function around it, one that names its class."""
    own = str(getattr(inner.spec, "id", ""))
    kind = type(inner)
    entry_points = (kind, f"{kind.__module__}:{kind.__qualname__}")
    found = [
        spec
        for spec in gymnasium.registry.values()
        if spec.entry_point in entry_points
        and all(str(getattr(inner, name, value)) == str(value) for name, value in spec.kwargs.items())
    ]
    known = [spec for spec in found if preset_for(spec.id) is not None]
    if preset_for(own) is not None or not (known or (found and not own)):
        return own
    return max(known or found, key=lambda spec: (len(spec.kwargs), spec.version or 0)).id
