"""The environments of one split as one vectorized environment. No communication happens here.

A vectorized environment steps all of its environments or none, and resets those that ended in one of three ways
(`gymnasium.vector.AutoresetMode`). Where an episode was truncated, its final observation has a row of its own that is
not valid; what the environment does in that row's step depends on the mode:

NEXT_STEP   it is reset and ignores its action. So it is after a termination: that final observation has a row, too.
SAME_STEP   it was reset in the step that ended the episode, so it takes the first step of the next one, with an action
            that was chosen for another observation. That step is lost: no row shows it, and the next row is what came
            of it, with the memory of an episode's beginning. Where a slot ends there, nothing is lost.
DISABLED    the same, but that it is reset from here, at once: it could not be stepped otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch, one_of_batch
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EpisodeRecord
from asyncrl.rollout.env_group import BoolArray, EnvironmentCallFailed, ObsArray, StepRows


class VectorEnvGroup:
    """Steps one vectorized environment. Owns it and its episode counters."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], seed: int | None, first_env_idx: int, spec: EnvSpec, squash: bool
    ) -> None:
        """Takes ownership of `env`, whose metadata names its autoreset mode.

        Args:
            env: the environments.
            seed: of the first reset; None where they were seeded when they were made.
            first_env_idx: number of the first one in the run.
            spec: their spaces.
            squash: whether continuous actions are squashed to their bounds.
        """
        self._env = env
        self._mode: AutoresetMode = env.metadata["autoreset_mode"]
        self._seed = seed
        self._first_env_idx = first_env_idx
        self._adapter = ActionAdapter(spec, squash)
        self._codec = ObservationCodec(spec.observation)
        self._holds_final_obs = np.zeros(env.num_envs, dtype=np.bool_)
        self._reset_obs = np.zeros((env.num_envs, spec.observation.row_size), dtype=spec.observation.row_dtype)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._num_steps = 0
        self._episodes: list[EpisodeRecord] = []

    def __len__(self) -> int:
        return int(self._env.num_envs)

    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment and writes the observations into `obs [E, row_size]`."""
        seed, self._seed = self._seed, None
        try:
            observations, _ = self._env.reset(seed=seed)
            self._codec.write_batch(observations, obs)
        except Exception as error:
            raise EnvironmentCallFailed(self._first_env_idx, self._num_steps, "reset") from error
        self._holds_final_obs[:] = False

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Takes one step in every environment, and writes what came of it where its row is a step.

        Args:
            actions: `[E, A]` float32 or `[E]` int64, as the distribution produced them.
            rows: where to write.

        Returns:
            Number of valid rows.
        """
        try:
            obs, reward, terminated, truncated, infos = self._env.step(self._adapter.to_vector_env(actions))
            self._codec.write_batch(obs, rows.next_obs)
        except Exception as error:
            raise EnvironmentCallFailed(self._first_env_idx, self._num_steps, "step") from error
        valid = ~self._holds_final_obs
        resets_in_next_step = self._mode == AutoresetMode.NEXT_STEP
        is_step = valid if resets_in_next_step else np.ones_like(valid)
        ended = np.logical_or(terminated, truncated) & is_step
        rows.valid[:] = valid
        np.multiply(reward, valid, out=rows.reward, casting="unsafe")
        np.logical_and(terminated, valid, out=rows.terminated)
        np.logical_and(truncated, valid & ~rows.terminated, out=rows.truncated)
        self._returns += np.where(is_step, reward, 0.0)
        self._lengths += is_step
        self._holds_final_obs = ended if resets_in_next_step else rows.truncated.copy()
        if ended.any():
            self._finish_episodes(ended)
            self._arrange_obs(ended, infos, rows.next_obs)
        self._num_steps += 1
        return int(valid.sum())

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """Writes the first row of a new slot from the last row of the one before, both `[E, row_size]`.

        Where a final observation stands in the last row, the new slot begins with the reset observation, unless the
        environment is only reset by the step that follows: then the final observation stands in both.

        Returns:
            The environments that begin with the reset observation.
        """
        np.copyto(first_obs, last_obs)
        if self._mode == AutoresetMode.NEXT_STEP:
            return []
        begun = np.flatnonzero(self._holds_final_obs)
        first_obs[begun] = self._reset_obs[begun]
        self._holds_final_obs[:] = False
        return [int(env) for env in begun]

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _finish_episodes(self, ended: BoolArray) -> None:
        for env in np.flatnonzero(ended):
            self._episodes.append(EpisodeRecord(float(self._returns[env]), int(self._lengths[env])))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0

    def _arrange_obs(self, ended: BoolArray, infos: dict[str, Any], next_obs: ObsArray) -> None:
        """Puts final observations where the next row holds one, reset ones where it does not, and keeps the others."""
        final = self._holds_final_obs
        if self._mode == AutoresetMode.SAME_STEP:
            self._reset_obs[final] = next_obs[final]
            for env in map(int, np.flatnonzero(final)):
                try:
                    self._codec.write(one_of_batch(_final_obs(infos), env), next_obs[env])
                except Exception as error:
                    raise EnvironmentCallFailed(self._first_env_idx + env, self._num_steps, "step") from error
        elif self._mode == AutoresetMode.DISABLED:
            try:
                observations, _ = self._env.reset(options={"reset_mask": ended})
                self._codec.write_batch(observations, self._reset_obs)
            except Exception as error:
                raise EnvironmentCallFailed(self._first_env_idx, self._num_steps, "reset") from error
            begins = ended & ~final
            next_obs[begins] = self._reset_obs[begins]


def _final_obs(infos: dict[str, Any]) -> Any:
    if "final_obs" not in infos:
        raise ObservationMismatch(
            'an episode was truncated in autoreset mode SAME_STEP, but its infos have no "final_obs" to bootstrap from'
        )
    return infos["final_obs"]
