"""The environments of one split, stepped one after the other. No communication happens here.

Environments are reset here and not by a wrapper, because the rows of a slot have their own rule: after a termination
the next row is the reset observation; after a truncation the next row is the final observation, which is not stepped,
and the reset observation is the row after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EpisodeRecord

NO_LIMIT = 2**62

FloatArray = npt.NDArray[np.float32]
ObsArray = npt.NDArray[Any]
"""[E, row_size], rows of `asyncrl.envs.spec.ObservationLayout`."""
BoolArray = npt.NDArray[np.bool_]


class EnvironmentCallFailed(Exception):
    """The environment's own code raised. The original exception is the cause.

    Attributes:
        env_idx: number of the environment in the run.
        step: environment steps it had made.
    """

    def __init__(self, env_idx: int, step: int, call: str) -> None:
        super().__init__(f"environment {env_idx} failed in {call} at its step {step}")
        self.env_idx = env_idx
        self.step = step


@dataclass(frozen=True)
class StepRows:
    """Where one step of a split goes, all views of a slot: `[E]`, and `next_obs [E, row_size]`."""

    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    valid: BoolArray
    next_obs: ObsArray


class EnvGroup:
    """Steps a split's environments. Owns them and their episode counters."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        seeds: Sequence[int],
        first_env_idx: int,
        spec: EnvSpec,
        squash: bool,
    ) -> None:
        """Takes ownership of the environments; `seeds` are used at the first reset only, one for each."""
        self._envs = list(envs)
        inner = [without_bookkeeping(env) for env in envs]
        self._steps = [env.step for env, _ in inner]
        self._resets = [env.reset for env, _ in inner]
        self._time_limits = [limit for _, limit in inner]
        self._seeds: list[int | None] = list(seeds)
        self._first_env_idx = first_env_idx
        self._adapter = ActionAdapter(spec, squash)
        self._obs_size = spec.observation_size
        self._codec = None if spec.observation.is_vector else ObservationCodec(spec.observation)
        self._holds_final_obs = [False] * len(self._envs)
        self._returns = [0.0] * len(self._envs)
        self._num_rows = 0
        self._first_rows = [0] * len(self._envs)  # the row of each environment's first step in its episode
        self._last_rows = [limit - 1 for limit in self._time_limits]  # the row at which its time limit is reached
        self._finished_steps = [0] * len(self._envs)
        self._episodes: list[EpisodeRecord] = []

    def __len__(self) -> int:
        return len(self._envs)

    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment and writes the observations into `obs [E, row_size]`."""
        for env in range(len(self._envs)):
            self._holds_final_obs[env] = False
            self._reset_one(env, obs)

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Takes one step in every environment whose row is a step, and writes what came of it.

        Args:
            actions: `[E, A]` float32 or `[E]` int64, as the distribution produced them.
            rows: where to write.

        Returns:
            Number of environment steps made.
        """
        # This loop runs once for every environment step of a run: what most steps share is written for all at once.
        rows.terminated[:] = rows.truncated[:] = False
        rows.valid[:] = True
        rewards: list[SupportsFloat] = [0.0] * len(self._envs)
        num_skipped = 0
        returns, holds_final_obs, next_obs = self._returns, self._holds_final_obs, rows.next_obs
        steps, last_rows, row = self._steps, self._last_rows, self._num_rows
        for env, action in enumerate(self._adapter.to_env_batch(actions)):
            if holds_final_obs[env]:
                self._skip_final_row(env, rows)
                num_skipped += 1
                continue
            try:
                obs, reward, terminated, truncated, info = steps[env](action)
            except Exception as error:
                raise self._failed(env, "step") from error
            rewards[env] = reward
            returns[env] += float(reward)
            if terminated or truncated or row == last_rows[env]:
                self._finish_episode(env, rows, obs, bool(terminated), info)
            else:
                self._store_obs(env, obs, next_obs, "step")
        rows.reward[:] = rewards
        self._num_rows += 1
        return len(rewards) - num_skipped

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """Writes the first row of a new slot, `first_obs [E, row_size]`, from the last row of the one before.

        Where an episode was truncated by the last step, the last row holds its final observation and has served; the
        new slot begins with the reset observation.

        Returns:
            The environments of which this is so.
        """
        np.copyto(first_obs, last_obs)
        begun = [env for env, holds_final_obs in enumerate(self._holds_final_obs) if holds_final_obs]
        for env in begun:
            self._holds_final_obs[env] = False
            self._reset_one(env, first_obs)
        return begun

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()

    def _finish_episode(self, env: int, rows: StepRows, obs: Any, terminated: bool, info: dict[str, Any]) -> None:
        length = self._num_rows + 1 - self._first_rows[env]
        extra_stats = {
            str(name): float(number)
            for name, number in info.get("episode_extra_stats", {}).items()
            if isinstance(number, (int, float, np.number))
        }
        self._episodes.append(EpisodeRecord(self._returns[env], length, extra_stats))
        self._finished_steps[env] += length
        self._begin_episode(env)
        if terminated:
            rows.terminated[env] = True
            self._reset_one(env, rows.next_obs)
        else:
            rows.truncated[env] = True
            self._store_obs(env, obs, rows.next_obs, "step")
            self._holds_final_obs[env] = True

    def _skip_final_row(self, env: int, rows: StepRows) -> None:
        rows.valid[env] = False
        self._holds_final_obs[env] = False
        self._reset_one(env, rows.next_obs)
        self._begin_episode(env)

    def _begin_episode(self, env: int) -> None:
        """The episode's first step is that of the next row."""
        self._first_rows[env] = self._num_rows + 1
        self._last_rows[env] = self._num_rows + self._time_limits[env]

    def _reset_one(self, env: int, obs_rows: ObsArray) -> None:
        seed, self._seeds[env] = self._seeds[env], None
        try:
            obs, _ = self._resets[env](seed=seed)
        except Exception as error:
            raise self._failed(env, "reset") from error
        self._returns[env] = 0.0
        self._store_obs(env, obs, obs_rows, "reset")

    def _store_obs(self, env: int, obs: Any, obs_rows: ObsArray, call: str) -> None:
        if self._codec is not None:
            try:
                self._codec.write(obs, obs_rows[env])
            except (ObservationMismatch, ValueError, TypeError, IndexError) as error:
                raise self._failed(env, call) from error
            return
        size = obs.size if isinstance(obs, np.ndarray) else np.size(obs)
        if size != self._obs_size:
            mismatch = ObservationMismatch(f"observation has {size} elements, its space says {self._obs_size}")
            raise self._failed(env, call) from mismatch
        obs_rows[env] = obs

    def _failed(self, env: int, call: str) -> EnvironmentCallFailed:
        steps = self._finished_steps[env] + max(0, self._num_rows - self._first_rows[env])
        return EnvironmentCallFailed(self._first_env_idx + env, steps, call)


def without_bookkeeping(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], int]:
    """Takes off the outermost wrappers whose work `EnvGroup` does itself, for each is a call in every step.

    Returns:
        The environment inside, and its time limit in steps; a number that is never reached if there is none.
    """
    limit = NO_LIMIT
    while isinstance(env, gymnasium.Wrapper) and type(env) in (TimeLimit, OrderEnforcing):
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit
