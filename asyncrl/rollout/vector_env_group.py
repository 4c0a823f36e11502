"""The environments of one split as one vectorized environment. No communication happens here.

Gymnasium's vectorized environments reset on the step after an episode's end: that step ignores its action and returns
the reset observation. This is just the row rule of a truncation, here for every end of an episode: the row after it
holds the final observation and is not valid, and the reset observation is the row after that one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EpisodeRecord
from asyncrl.rollout.env_group import EnvironmentCallFailed, ObsArray, StepRows


class VectorEnvGroup:
    """Steps one vectorized environment. Owns it and its episode counters."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], seed: int, first_env_idx: int, spec: EnvSpec, squash: bool
    ) -> None:
        """Takes ownership of `env`, whose autoreset mode is `NEXT_STEP`; `seed` is used at the first reset only."""
        self._env = env
        self._seed: int | None = seed
        self._first_env_idx = first_env_idx
        self._adapter = ActionAdapter(spec, squash)
        self._codec = ObservationCodec(spec.observation)
        self._holds_final_obs = np.zeros(env.num_envs, dtype=np.bool_)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._num_steps = 0
        self._episodes: list[EpisodeRecord] = []

    def __len__(self) -> int:
        return int(self._env.num_envs)

    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment and writes the observations into `obs [E, D]`."""
        seed, self._seed = self._seed, None
        try:
            observations, _ = self._env.reset(seed=seed)
            self._codec.write_batch(observations, obs)
        except Exception as error:
            raise EnvironmentCallFailed(self._first_env_idx, self._num_steps, "reset") from error
        self._holds_final_obs[:] = False

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Takes one step in every environment whose row is a step, and writes what came of it.

        Args:
            actions: `[E, A]` float32 or `[E]` int64, as the distribution produced them.
            rows: where to write.

        Returns:
            Number of environment steps made.
        """
        try:
            obs, reward, terminated, truncated, _ = self._env.step(self._adapter.to_vector_env(actions))
            self._codec.write_batch(obs, rows.next_obs)
        except Exception as error:
            raise EnvironmentCallFailed(self._first_env_idx, self._num_steps, "step") from error
        valid = ~self._holds_final_obs
        np.multiply(reward, valid, out=rows.reward, casting="unsafe")
        np.logical_and(terminated, valid, out=rows.terminated)
        np.logical_and(truncated, valid & ~rows.terminated, out=rows.truncated)
        rows.valid[:] = valid
        self._returns += np.where(valid, reward, 0.0)
        self._lengths += valid
        np.logical_or(rows.terminated, rows.truncated, out=self._holds_final_obs)
        if self._holds_final_obs.any():
            self._finish_episodes()
        self._num_steps += 1
        return int(valid.sum())

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """Writes the first row of a new slot from the last row of the one before, both `[E, row_size]`.

        A final observation stands in both: the environment is reset by the step that follows it.

        Returns:
            Environments that were reset: none.
        """
        np.copyto(first_obs, last_obs)
        return []

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _finish_episodes(self) -> None:
        for env in np.flatnonzero(self._holds_final_obs):
            self._episodes.append(EpisodeRecord(float(self._returns[env]), int(self._lengths[env])))
        self._returns[self._holds_final_obs] = 0.0
        self._lengths[self._holds_final_obs] = 0
