"""The environments of one split as one vectorized environment. No communication happens here.

A vectorized environment steps all of its environments or none, and resets those that ended in one of three ways
(`gymnasium.vector.AutoresetMode`). Where an episode was truncated, its final observation has a row of its own that is
not valid; what the environment does in that row's step depends on the mode:

NEXT_STEP   it is reset and ignores its action. So it is after a termination: that final observation has a row, too.
SAME_STEP   it was reset in the step that ended the episode, so it takes the first step of the next one, with an action
            that was chosen for another observation. That step is lost: no row shows it, and the next row is what came
            of it, with the recurrent state of an episode's beginning. Where a slot ends there, nothing is lost.
DISABLED    the same, but that it is reset from here, at once: it could not be stepped otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.buffers.replay import StepRows
from asyncrl.config.schema import ActionMapping
from asyncrl.envs.interface import give_training_info
from asyncrl.envs.observations import ObservationMismatch, describe_not_finite, is_surely_finite, one_of_batch
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EpisodeRecord
from asyncrl.rollout.env_group import BoolArray, EnvironmentGroup, FloatArray, ObsArray
from asyncrl.rollout.failures import EnvironmentTrouble, LostStep, NotFinite, Renewal


class VectorEnvGroup(EnvironmentGroup):
    """Steps one vectorized environment. Owns it and its episode counters.

    Its environments cannot be reset or recreated one by one: where one fails, or gives what is not finite, the steps of
    all are lost.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seed: int,
        first_env_idx: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        renewal: Renewal | None = None,
    ) -> None:
        """Takes ownership of `env`, whose metadata names its autoreset mode; arguments are as for `EnvGroup`."""
        super().__init__(first_env_idx, spec, mapping, renewal)
        self._env = env
        self._mode: AutoresetMode = env.metadata["autoreset_mode"]
        self._seed: int | None = seed
        self._holds_final_obs = np.zeros(env.num_envs, dtype=np.bool_)
        self._reset_obs = np.zeros((env.num_envs, spec.observation.row_size), dtype=spec.observation.row_dtype)
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._num_rows = np.zeros(env.num_envs, dtype=np.int64)  # valid ones of each one's episode
        self._num_steps = 0

    def __len__(self) -> int:
        return int(self._env.num_envs)

    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment and writes the observations into `obs [E, D]`."""
        try:
            self._try_reset(obs)
        except EnvironmentTrouble as trouble:
            self._begin_in_new(trouble, obs)

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Takes one step in every environment whose row is a step, and writes what came of it.

        Args:
            actions: `[E, A]` float32 or `[E]` int64, as the distribution produced them.
            rows: where to write.

        Returns:
            Number of environment steps made; those that are lost are none.

        Raises:
            EnvironmentTrouble: an environment did what it should not, and the run cannot go on.
            EnvironmentsKeepFailing: for the same reason.
        """
        try:
            obs, reward, terminated, truncated, infos = self._env.step(self._adapter.to_vector_env(actions))
        except Exception as error:
            self._lose_all(rows, self._call_failed(0, self._num_steps, "step", error))
            return 0
        valid = ~self._holds_final_obs
        resets_in_next_step = self._mode == AutoresetMode.NEXT_STEP
        is_step = valid if resets_in_next_step else np.ones_like(valid)
        ended = np.logical_or(terminated, truncated) & is_step
        np.multiply(reward, valid, out=rows.reward, casting="unsafe")
        np.logical_and(terminated, valid, out=rows.terminated)
        np.logical_and(truncated, valid & ~rows.terminated, out=rows.truncated)
        rows.valid[:] = valid
        self._store_obs(obs, rows.next_obs, "step")
        if not resets_in_next_step and ended.any():
            try:
                self._arrange_obs(ended, rows.truncated, infos, rows.next_obs)
                self._check_reset_obs()
            except EnvironmentTrouble as trouble:
                self._lose_all(rows, trouble)
                return 0
        floats = self._writer.floats(rows.next_obs)
        if not (is_surely_finite(rows.reward) and is_surely_finite(floats)):
            is_finite = np.isfinite(rows.reward) & np.isfinite(floats).all(1)
            if not is_finite.all():
                self._lose_all(rows, self._not_finite(int(np.argmin(is_finite)), rows.reward, floats))
                return 0
        self._returns += np.where(is_step, reward, 0.0)
        self._lengths += is_step
        self._num_rows += valid
        self._holds_final_obs = ended if resets_in_next_step else rows.truncated.copy()
        if ended.any():
            self._finish_episodes(ended)
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

    def set_training_info(self, info: Mapping[str, Any]) -> None:
        """Gives a dict to the environment if it takes one, and to one that is made in its place."""
        self._training_info = info
        try:
            give_training_info(self._env, info)
        except Exception as error:
            raise self._call_failed(0, self._num_steps, "set_training_info", error) from error

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _finish_episodes(self, ended: BoolArray) -> None:
        for env in np.flatnonzero(ended):
            self._add_episode(int(env), EpisodeRecord(float(self._returns[env]), int(self._lengths[env])))
        self._returns[ended] = 0.0
        self._lengths[ended] = self._num_rows[ended] = 0

    def _arrange_obs(self, ended: BoolArray, truncated: BoolArray, infos: dict[str, Any], next_obs: ObsArray) -> None:
        """Puts final observations where the next row holds one, reset ones where it does not, and keeps the others."""
        if self._mode == AutoresetMode.SAME_STEP:
            self._reset_obs[truncated] = next_obs[truncated]
            for env in map(int, np.flatnonzero(truncated)):
                self._store_final_obs(env, infos, next_obs[env])
            return
        try:
            reset_obs, _ = self._env.reset(options={"reset_mask": ended})
        except Exception as error:
            raise self._call_failed(0, self._num_steps, "reset", error) from error
        self._store_obs(reset_obs, self._reset_obs, "reset")
        begins = ended & ~truncated
        next_obs[begins] = self._reset_obs[begins]

    def _check_reset_obs(self) -> None:
        """Looks at the observations that the next slot may begin with."""
        floats = self._writer.floats(self._reset_obs)
        if not is_surely_finite(floats):
            is_finite = np.isfinite(floats).all(1)
            if not is_finite.all():
                raise self._not_finite(int(np.argmin(is_finite)), np.zeros(len(self), dtype=np.float32), floats)

    def _store_final_obs(self, env: int, infos: dict[str, Any], row: ObsArray) -> None:
        try:
            if "final_obs" not in infos:
                raise ObservationMismatch(
                    "an episode was truncated in autoreset mode SAME_STEP, but its infos have no final_obs"
                )
            self._writer.write(one_of_batch(infos["final_obs"], env), row)
        except ObservationMismatch as error:
            raise self._wrong_observation(env, self._num_steps, "step", error) from None

    def _lose_all(self, rows: StepRows, trouble: EnvironmentTrouble) -> None:
        """The row is no sample of any environment; new episodes begin in the next one."""
        if self._renewal is None:
            raise trouble
        num_samples = int((~self._holds_final_obs).sum())
        lengths = self._num_rows.tolist()
        if isinstance(trouble, NotFinite):
            has_failed = self._renewal.failures.note_not_finite(trouble, lengths[trouble.env_idx - self._first_env_idx])
            self.note_dropped(num_samples - 1)
        else:
            has_failed = True
        rows.reward[:] = 0.0
        rows.terminated[:] = rows.truncated[:] = rows.valid[:] = False
        self.lost.extend(LostStep(env, length, has_failed) for env, length in enumerate(lengths))
        if has_failed:
            self._begin_in_new(trouble, rows.next_obs)
        else:
            self.reset(rows.next_obs)
        self._returns[:] = 0.0
        self._lengths[:] = self._num_rows[:] = 0

    def _begin_in_new(self, trouble: EnvironmentTrouble, obs_rows: ObsArray) -> None:
        """Begins episodes in an environment that is made in the place of the one that failed."""

        def begin(renewal: Renewal) -> None:
            with contextlib.suppress(Exception):  # what has failed may fail to close
                self._env.close()
            try:
                self._env = renewal.make()
                if self._training_info is not None:
                    give_training_info(self._env, self._training_info)
            except Exception as error:
                raise self._call_failed(0, self._num_steps, "being recreated", error) from error
            self._seed = renewal.seed(self._first_env_idx, self._num_steps + self._num_renewals)
            self._try_reset(obs_rows)

        self._renew(trouble, begin)

    def _try_reset(self, obs_rows: ObsArray) -> None:
        seed, self._seed = self._seed, None
        try:
            obs, _ = self._env.reset(seed=seed)
        except Exception as error:
            raise self._call_failed(0, self._num_steps, "reset", error) from error
        self._store_obs(obs, obs_rows, "reset")
        self._holds_final_obs[:] = False
        self._reset_obs[:] = 0

    def _store_obs(self, obs: Any, obs_rows: ObsArray, call: str) -> None:
        try:
            self._writer.write_batch(obs, obs_rows)
        except ObservationMismatch as error:
            raise self._wrong_observation(0, self._num_steps, call, error) from None

    def _not_finite(self, env: int, reward: FloatArray, floats: FloatArray) -> NotFinite:
        is_reward = not np.isfinite(reward[env])
        text = f"gave a {'reward' if is_reward else 'observation'} that is not finite"
        values = reward[env] if is_reward else floats[env]
        return NotFinite(self._first_env_idx + env, self._num_steps, text, describe_not_finite(values))
