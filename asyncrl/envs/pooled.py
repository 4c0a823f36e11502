"""EnvPool (extra `envpool`): environments of C++ that a pool steps, all of a split at once.

A pool is a vectorized environment of Gymnasium that resets in the next step. It is stepped synchronously: the rows of a
split are written together, so a part of its environments that is ready earlier (`send` and `recv` of fewer than all)
could not go on by itself. What runs side by side are the workers, and with central inference the splits of a worker,
each with a pool of its own. A pool has one thread unless `env_kwargs` says otherwise (`num_threads`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from asyncrl.config.errors import UsageError
from asyncrl.envs.observations import one_of_batch

_LARGEST_SEED = 2**31


def make_pool(env_id: str, env_kwargs: Mapping[str, Any], num_envs: int, seed: int) -> VectorEnv[Any, Any, Any]:
    """Makes a pool of environments. Pools take their seed when they are made and never again.

    Args:
        env_id: as EnvPool names it, which is not always Gymnasium's name.
        env_kwargs: arguments of EnvPool for that id.
        num_envs: environments.
        seed: of the first one; the others count on from it.

    Raises:
        UsageError: EnvPool is not installed, or does not know the id or an argument.
    """
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            '--env_backend=envpool needs EnvPool, which is not installed: pip install "asyncrl[envpool]"'
        ) from error
    known = envpool.list_all_envs()
    if env_id not in known:
        near = difflib.get_close_matches(env_id, known, n=3)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise UsageError(f"EnvPool knows no environment {env_id!r}{hint}.")
    arguments = {"num_threads": 1, **env_kwargs, "num_envs": num_envs, "seed": seed % _LARGEST_SEED}
    unknown = sorted(set(arguments) - set(envpool.make_spec(env_id)._config_keys))
    if unknown:
        raise UsageError(f"EnvPool's {env_id} does not take these arguments (env_kwargs): {', '.join(unknown)}")
    pool: VectorEnv[Any, Any, Any] = envpool.make_gymnasium(env_id, **arguments)
    return pool


class PooledEnv(gymnasium.Env[Any, Any]):
    """One environment of EnvPool as an environment of Gymnasium, for evaluation."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any]) -> None:
        """Makes a pool of one environment; a reset with a seed makes another.

        Raises:
            UsageError: as for `make_pool`.
        """
        self._env_id, self._env_kwargs = env_id, env_kwargs
        self._pool = make_pool(env_id, env_kwargs, num_envs=1, seed=0)
        self.observation_space = self._pool.single_observation_space
        self.action_space = self._pool.single_action_space
        pool_spec: Any = self._pool.spec
        self.spec = EnvSpec(id=env_id, max_episode_steps=int(pool_spec.config.max_episode_steps))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the pool's own one if no seed is given."""
        if seed is not None:
            self._pool.close()
            self._pool = make_pool(self._env_id, self._env_kwargs, num_envs=1, seed=seed)
        obs, _ = self._pool.reset()
        return one_of_batch(obs, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step."""
        obs, reward, terminated, truncated, _ = self._pool.step(np.asarray(action)[np.newaxis])
        return one_of_batch(obs, 0), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Closes the pool."""
        self._pool.close()
