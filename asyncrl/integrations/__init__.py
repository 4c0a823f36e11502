"""Simulators that step many environments at once, as `gymnasium.vector.VectorEnv` of tensors.

    isaaclab, mjlab      `ManagerBasedRLEnv`, `DirectRLEnv`         asyncrl.integrations.isaaclab
    maniskill            `BaseEnv`, `ManiSkillVectorEnv`            asyncrl.integrations.maniskill
    brax, playground     environments in JAX, through DLPack        asyncrl.integrations.jax_envs
    gymnasium.vector     vectorized environments of arrays          asyncrl.integrations.arrays

Besides, `asyncrl.integrations.spark` starts the ranks of a run on a Spark cluster.

A callable with a parameter `num_envs` that returns one of them is an environment (`--env=MODULE:function`); only arrays
must be wrapped by `wrap`, because they have a backend of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Literal, get_args

from gymnasium.vector import VectorEnv

from asyncrl.config.errors import UsageError

Simulator = Literal["isaaclab", "mjlab", "maniskill", "brax", "playground", "gymnasium.vector"]

_WRAPPERS: dict[str, str] = {
    "isaaclab": "isaaclab:IsaacLabEnv",
    "mjlab": "isaaclab:IsaacLabEnv",
    "maniskill": "maniskill:ManiSkillEnv",
    "brax": "jax_envs:JaxEnv",
    "playground": "jax_envs:JaxEnv",
    "gymnasium.vector": "arrays:TensorsOfArrays",
}
_PACKAGES = {
    "isaaclab": "isaaclab",
    "isaaclab_tasks": "isaaclab",
    "mjlab": "mjlab",
    "mani_skill": "maniskill",
    "brax": "brax",
    "mujoco_playground": "playground",
}
"""Simulators by the package of their environments' classes."""


def wrap(simulator: Simulator, env: Any, **options: Any) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment of tensors of a simulator's environment.

    Args:
        simulator: the kind of environment.
        env: the environment, made; of brax and playground, for one environment.
        options: of brax and playground `num_envs`, `episode_length`, `action_repeat`; of gymnasium.vector `device`.

    Raises:
        UsageError: there is no such kind.
    """
    if simulator not in _WRAPPERS:
        raise UsageError(f"There is no simulator {simulator} (known: {', '.join(get_args(Simulator))}).")
    module, _, name = _WRAPPERS[simulator].partition(":")
    wrapper = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    wrapped: VectorEnv[Any, Any, Any] = wrapper(env, **options)
    return wrapped


def find_kind(env: Any) -> Simulator | None:
    """The simulator whose package has the class of an environment, or one of its base classes; None if unknown."""
    unwrapped = getattr(env, "unwrapped", env)
    for own in (*type(env).__mro__, *type(unwrapped).__mro__):
        kind: Any = _PACKAGES.get(own.__module__.partition(".")[0])
        if kind is not None:
            return kind  # type: ignore[no-any-return]
    return None


def as_vector_env(env: Any, env_id: str, num_envs: int) -> VectorEnv[Any, Any, Any]:
    """What a callable returned that was called with `num_envs`, wrapped if it is a simulator's environment.

    Raises:
        UsageError: it is none, or it has another number of environments.
    """
    kind = find_kind(env)
    if kind is not None:
        env = wrap(kind, env, **({"num_envs": num_envs} if kind in ("brax", "playground") else {}))
    if not isinstance(env, VectorEnv):
        raise UsageError(
            f"{env_id} returned {type(env).__name__}, but a gymnasium.vector.VectorEnv is expected, or an environment "
            f"of {', '.join(sorted(set(_PACKAGES.values())))}."
        )
    if env.num_envs != num_envs:
        raise UsageError(f"{env_id} made {env.num_envs} environments, but num_envs={num_envs} was asked for.")
    return env


def find_simulator(module: str, name: str) -> Callable[..., Any] | None:
    """The function that makes the environment `name` of the package `brax` or `mujoco_playground`; else None."""
    if module not in ("brax", "mujoco_playground"):
        return None
    from asyncrl.integrations.jax_envs import maker_of

    return maker_of(module, name)
