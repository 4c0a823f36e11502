"""Wraps an environment by the name of its simulator, for a function of a user that makes it."""

from __future__ import annotations

from typing import Any, Literal, get_args

from gymnasium.vector import VectorEnv

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.contrib.simulators.hooks import SIMULATORS

Simulator = Literal["isaaclab", "mjlab", "maniskill", "brax", "playground", "gymnasium.vector"]

_WRAPPERS = {name: wrapper for name, wrapper, _ in SIMULATORS.values()}
_WRAPPERS["gymnasium.vector"] = "asyncrl.envs.tensors:TensorsOfArrays"


def wrap(simulator: Simulator, env: Any, **options: Any) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment of tensors of a simulator's environment.

    What a callable with a parameter `num_envs` returns is wrapped without this call; only arrays must be wrapped,
    because they have their own backend.

    Args:
        simulator: the kind of environment.
        env: the environment, made; of brax and playground, for one environment.
        options: of brax and playground `num_envs`, `episode_length`, `action_repeat`; of gymnasium.vector `device`.

    Raises:
        UsageError: there is no such kind.
    """
    if simulator not in _WRAPPERS:
        raise UsageError(f"There is no simulator {simulator} (known: {', '.join(get_args(Simulator))}).")
    wrapped: VectorEnv[Any, Any, Any] = imported(_WRAPPERS[simulator])(env, **options)
    return wrapped
