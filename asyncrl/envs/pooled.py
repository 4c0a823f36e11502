"""EnvPool (extra `envpool`): C++ environments of a split, stepped by one pool.

A pool is a vectorized environment that resets in the next step. It is stepped synchronously: the rows of a split are
written together, so a part of its environments could not continue earlier (`send` and `recv`). Workers run in parallel,
and with central inference also the splits of a worker; each has a separate pool. A pool has one thread unless
`env_kwargs` sets `num_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint


class PooledVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool with Gymnasium's interface of vectorized environments.

    A pool takes its seed when it is made, so a reset with a seed makes another pool. `env_id` is EnvPool's id, which
    may differ from Gymnasium's.

    Raises:
        UsageError: EnvPool is not installed, or does not know the id or an argument.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], num_envs: int) -> None:
        self._env_id, self._env_kwargs, self.num_envs = env_id, env_kwargs, num_envs
        self._pool = self._make(seed=0)
        self.single_observation_space = self._pool.single_observation_space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.spec = EnvSpec(id=env_id, max_episode_steps=int(self._pool.spec.config.max_episode_steps))

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in all environments; environment i gets `seed + i`, which must fit in 31 bits."""
        if seed is not None:
            self._pool.close()
            self._pool = self._make(seed)
        obs, _ = self._pool.reset()
        return obs, {}

    def step(
        self, actions: npt.NDArray[Any]
    ) -> tuple[Any, npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self._pool.step(actions)
        return obs, reward, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make(self, seed: Any) -> Any:
        try:
            import envpool
        except ImportError as error:
            raise UsageError(
                "--env_backend=envpool needs EnvPool, which is not installed: pip install envpool"
            ) from error
        known = envpool.list_all_envs()
        if self._env_id not in known:
            raise UsageError(f"EnvPool knows no environment {self._env_id!r}{nearest_hint(self._env_id, known, 3)}.")
        arguments = {"num_threads": 1, **self._env_kwargs, "num_envs": self.num_envs, "seed": seed}
        unknown = sorted(set(arguments) - set(envpool.make_spec(self._env_id)._config_keys))
        if unknown:
            names = ", ".join(unknown)
            raise UsageError(f"EnvPool's {self._env_id} does not take these arguments (env_kwargs): {names}.")
        return envpool.make_gymnasium(self._env_id, **arguments)
