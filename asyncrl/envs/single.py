"""Makes a single environment of a vectorized one, for the probe and for evaluation."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from asyncrl.config.errors import UsageError
from asyncrl.envs.interface import stats_of_ends
from asyncrl.envs.observations import one_of_batch
from asyncrl.envs.results import values_problem

VECTOR_SEEDS = 2**30
"""Upper bound for seeds of vectorized environments: C++ ones take 31 bits and add the environment's number."""


class SingleEnv(gymnasium.Env[Any, Any]):
    """The only environment of a vectorized one, in any autoreset mode: `reset` resets it again after an end.

    Attributes:
        vector_env: the vectorized environment, which this object owns.
        gives_tensors: whether its observations and actions are tensors.
    """

    gives_tensors = False

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        self.vector_env = env
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.spec_id = env_id
        self.spec = env.spec or EnvSpec(id=re.sub(r"[^\w:./-]", "-", env_id))  # such as those around a lambda

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.vector_env.reset(seed=None if seed is None else seed % VECTOR_SEEDS)
        return self._observe(obs), infos if isinstance(infos, dict) else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment. After an episode's end the observation may be that of the next episode."""
        result = self.vector_env.step(self._batch_of(action))
        if (problem := values_problem(result)) is not None:
            raise UsageError(f"{self.spec_id}: {problem}.")
        obs, reward, terminated, truncated, infos = result
        has_ended = bool(terminated[0]), bool(truncated[0])
        return self._observe(obs), float(reward[0]), *has_ended, _end_info(infos) if any(has_ended) else {}

    def _observe(self, observations: Any) -> Any:
        return one_of_batch(observations, 0)

    def _batch_of(self, action: Any) -> Any:
        room: Any = create_empty_array(self.action_space, 1)
        return concatenate(self.action_space, [action], room)

    def close(self) -> None:
        self.vector_env.close()


def _end_info(infos: Any) -> dict[str, Any]:
    """What a single environment would tell at the end of an episode: the numbers of the first of the vectorized one."""
    stats = {}
    for name, (values, has) in stats_of_ends(infos).items():
        if has is None or has[0]:
            stats[name] = values[0].item() if hasattr(values[0], "item") else values[0]
    return {"episode_extra_stats": stats} if stats else {}
