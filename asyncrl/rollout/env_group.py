"""The environments of one split, stepped one after the other. No communication happens here.

Environments are reset here and not by a wrapper, because the rows of a slot have their own rule: after a termination
the next row is the reset observation; after a truncation the next row is the final observation, which is not stepped,
and the reset observation is the row after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.buffers.replay import StepRows
from asyncrl.config.schema import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.interface import give_training_info, without_bookkeeping
from asyncrl.envs.observations import ObservationMismatch, ObservationWriter, describe_not_finite, is_surely_finite
from asyncrl.envs.spec import EnvSpec
from asyncrl.monitoring.reports import EnvironmentFailures, EpisodeRecord
from asyncrl.rollout.failures import (
    EnvironmentCallFailed,
    EnvironmentTrouble,
    LostStep,
    NotFinite,
    Renewal,
    WrongObservation,
)


class EnvironmentGroup:
    """Keeps a group's records.

    Attributes:
        lost: steps that came to nothing, until they are taken.
    """

    def __init__(self, first_env_idx: int, spec: EnvSpec, mapping: ActionMapping, renewal: Renewal | None) -> None:
        """Starts with no episode.

        Args:
            first_env_idx: number of the group's first environment in the run.
            spec: the environments' spaces.
            mapping: see `ActionAdapter`.
            renewal: how environments are recreated when they fail; without it all trouble is raised.
        """
        self.lost: list[LostStep] = []
        self._first_env_idx = first_env_idx
        self._adapter = ActionAdapter(spec, mapping)
        self._writer = ObservationWriter(spec.observation)
        self._renewal = renewal
        self._num_renewals = 0
        self._episodes: list[EpisodeRecord] = []
        self._training_info: Mapping[str, Any] | None = None

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def take_lost(self) -> list[LostStep]:
        """Steps that came to nothing since the last call."""
        lost, self.lost = self.lost, []
        return lost

    def note_dropped(self, num_samples: int) -> None:
        """Notes that samples were taken back."""
        if self._renewal is not None:
            self._renewal.failures.note_dropped(num_samples)

    def take_failures(self) -> EnvironmentFailures:
        """What went wrong since the last call, in all groups of the worker."""
        return EnvironmentFailures() if self._renewal is None else self._renewal.failures.take()

    def _add_episode(self, env: int, record: EpisodeRecord) -> None:
        self._episodes.append(record)
        if self._renewal is not None:
            self._renewal.failures.note_episode(self._first_env_idx + env)

    def _renew(self, trouble: EnvironmentTrouble, begin: Callable[[Renewal], None]) -> None:
        """Has `begin` start over in a new environment, again while that fails and the failures are not too many."""
        while True:
            if self._renewal is None:
                raise trouble
            self._renewal.failures.note_failure(trouble)
            self._num_renewals += 1
            try:
                begin(self._renewal)
                return
            except EnvironmentTrouble as another:
                trouble = another

    def _wrong_observation(self, env: int, step: int, call: str, error: ObservationMismatch) -> WrongObservation:
        text = f"returned an observation from {call} that does not match its space"
        return WrongObservation(self._first_env_idx + env, step, text, str(error))

    def _call_failed(self, env: int, step: int, call: str, error: Exception) -> EnvironmentCallFailed:
        failed = EnvironmentCallFailed(self._first_env_idx + env, step, f"failed in {call}")
        failed.__cause__ = error
        return failed


FloatArray = npt.NDArray[np.float32]
ObsArray = npt.NDArray[Any]
"""Rows of observations, see `asyncrl.envs.spec.ObservationLayout`."""
BoolArray = npt.NDArray[np.bool_]


class EnvGroup(EnvironmentGroup):
    """Steps a split's environments. Owns them and their episode counters."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        seeds: Sequence[int],
        first_env_idx: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        renewal: Renewal | None = None,
    ) -> None:
        """Takes ownership of the environments.

        Args:
            envs: the environments.
            seeds: used at the first reset only, one for each.
            first_env_idx: number of the first one in the run.
            spec: their spaces.
            mapping: see `ActionAdapter`.
            renewal: how they are recreated when they fail; without it all trouble is raised.
        """
        super().__init__(first_env_idx, spec, mapping, renewal)
        self._envs = list(envs)
        inner = [without_bookkeeping(env) for env in envs]
        self._steps = [env.step for env, _ in inner]
        self._resets = [env.reset for env, _ in inner]
        self._time_limits = [limit for _, limit in inner]
        self._seeds: list[int | None] = list(seeds)
        self._holds_final_obs = [False] * len(self._envs)
        self._returns = [0.0] * len(self._envs)
        self._num_rows = 0
        self._first_rows = [0] * len(self._envs)  # the row of each environment's first step in its episode
        self._last_rows = [limit - 1 for limit in self._time_limits]  # the row at which its time limit is reached
        self._finished_steps = [0] * len(self._envs)

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
            Number of environment steps made; those that are lost are none.

        Raises:
            EnvironmentTrouble: an environment did what it should not, and the run cannot go on.
            EnvironmentsKeepFailing: for the same reason.
        """
        # This loop runs once for every environment step of a run: what most steps share is written for all at once.
        rows.terminated[:] = rows.truncated[:] = False
        rows.valid[:] = True
        rewards: list[SupportsFloat] = [0.0] * len(self._envs)
        ending: list[tuple[int, bool, dict[str, Any]]] = []
        num_skipped = 0
        returns, holds_final_obs, next_obs = self._returns, self._holds_final_obs, rows.next_obs
        steps, last_rows, row = self._steps, self._last_rows, self._num_rows
        writer, array_type = self._writer, np.ndarray
        for env, action in enumerate(self._adapter.to_env_batch(actions)):
            if holds_final_obs[env]:
                # The row holds a final observation: the reset observation goes into the next one.
                rows.valid[env] = holds_final_obs[env] = False
                self._reset_one(env, next_obs)
                self._begin_episode(env)
                num_skipped += 1
                continue
            try:
                obs, reward, terminated, truncated, info = steps[env](action)
            except Exception as error:
                self._lose_episode(env, rows, self._failed(env, "step", error))
                num_skipped += 1
                continue
            rewards[env] = reward
            returns[env] += float(reward)
            if not terminated:
                if type(obs) is array_type and obs.dtype is writer.dtype and obs.shape == writer.shape:
                    next_obs[env] = obs
                else:
                    self._store_obs(env, obs, next_obs, "step")
            if terminated or truncated or row == last_rows[env]:
                ending.append((env, bool(terminated), info))
        rows.reward[:] = rewards
        floats = next_obs if writer.dtype is not None else writer.floats(next_obs)
        if not (is_surely_finite(rows.reward) and is_surely_finite(floats)):
            num_skipped += self._drop_what_is_not_finite(rows)
        for env, has_terminated, info in ending:
            if rows.valid[env]:
                self._finish_episode(env, rows, has_terminated, info)
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

    def set_training_info(self, info: Mapping[str, Any]) -> None:
        """Gives a dict to the environments that take one, and to those that are recreated later."""
        self._training_info = info
        for env_idx, env in enumerate(self._envs):
            try:
                give_training_info(env, info)
            except Exception as error:
                raise self._failed(env_idx, "set_training_info", error) from error

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()

    def _finish_episode(self, env: int, rows: StepRows, has_terminated: bool, info: dict[str, Any]) -> None:
        length = self._num_rows + 1 - self._first_rows[env]
        extra_stats = {
            str(name): float(number)
            for name, number in info.get("episode_extra_stats", {}).items()
            if isinstance(number, (int, float, np.number))
        }
        self._add_episode(env, EpisodeRecord(self._returns[env], length, extra_stats))
        self._begin_episode(env, steps_before=length)
        if has_terminated:
            rows.terminated[env] = True
            self._reset_one(env, rows.next_obs)
        else:
            rows.truncated[env] = True
            self._holds_final_obs[env] = True

    def _begin_episode(self, env: int, steps_before: int = 0) -> None:
        """The episode's first step is that of the next row; the one before had `steps_before` that count from now."""
        self._finished_steps[env] += steps_before
        self._first_rows[env] = self._num_rows + 1
        self._last_rows[env] = self._num_rows + self._time_limits[env]

    def _lose(self, env: int, rows: StepRows, has_failed: bool) -> None:
        """The row is no sample; the caller has a new episode begin in the next one."""
        rows.reward[env] = 0.0
        rows.terminated[env] = rows.truncated[env] = rows.valid[env] = False
        self.lost.append(LostStep(env, self._episode_steps(env), has_failed))

    def _lose_episode(self, env: int, rows: StepRows, trouble: EnvironmentTrouble) -> None:
        """Loses the step of an environment that has failed, with what is left of its episode."""
        episode_steps = self._episode_steps(env)
        self._lose(env, rows, has_failed=True)
        self._begin_in_new(env, trouble, rows.next_obs)
        self._begin_episode(env, episode_steps)

    def _drop_what_is_not_finite(self, rows: StepRows) -> int:
        """Loses the steps whose reward or observation is not finite; returns how many there are."""
        floats = self._writer.floats(rows.next_obs)
        is_finite = np.isfinite(rows.reward) & np.isfinite(floats).all(1)
        bad = np.flatnonzero(~is_finite).tolist()
        for env in bad:
            if np.isfinite(rows.reward[env]):
                trouble = self._not_finite(env, "observation", floats[env])
            else:
                trouble = self._not_finite(env, "reward", rows.reward[env])
            episode_steps = self._episode_steps(env)
            self._lose(env, rows, has_failed=False)
            if self._renewal is None:
                raise trouble
            if self._renewal.failures.note_not_finite(trouble, episode_steps):
                self._begin_in_new(env, trouble, rows.next_obs)
            else:
                self._reset_one(env, rows.next_obs)
            self._begin_episode(env, episode_steps)
        return len(bad)

    def _reset_one(self, env: int, obs_rows: ObsArray) -> None:
        """Begins an episode, in a new environment if this one cannot."""
        try:
            self._try_reset(env, obs_rows)
        except EnvironmentTrouble as trouble:
            self._begin_in_new(env, trouble, obs_rows)

    def _begin_in_new(self, env: int, trouble: EnvironmentTrouble, obs_rows: ObsArray) -> None:
        """Begins an episode in an environment that is made in the place of one that failed."""

        def begin(renewal: Renewal) -> None:
            with contextlib.suppress(Exception):  # what has failed may fail to close
                self._envs[env].close()
            try:
                self._envs[env] = renewal.make()
                if self._training_info is not None:
                    give_training_info(self._envs[env], self._training_info)
            except Exception as error:
                raise self._failed(env, "being recreated", error) from error
            inner, self._time_limits[env] = without_bookkeeping(self._envs[env])
            self._steps[env], self._resets[env] = inner.step, inner.reset
            self._seeds[env] = renewal.seed(self._first_env_idx + env, self._steps_made(env) + self._num_renewals)
            self._try_reset(env, obs_rows)

        self._renew(trouble, begin)

    def _try_reset(self, env: int, obs_rows: ObsArray) -> None:
        seed, self._seeds[env] = self._seeds[env], None
        try:
            obs, _ = self._resets[env](seed=seed)
        except Exception as error:
            raise self._failed(env, "reset", error) from error
        self._returns[env] = 0.0
        self._store_obs(env, obs, obs_rows, "reset")
        floats = obs_rows[env] if self._writer.dtype is not None else self._writer.floats(obs_rows[env : env + 1])[0]
        if not np.isfinite(floats).all():
            raise self._not_finite(env, "first observation", floats)

    def _store_obs(self, env: int, obs: Any, obs_rows: ObsArray, call: str) -> None:
        try:
            self._writer.write(obs, obs_rows[env])
        except ObservationMismatch as error:
            raise self._wrong_observation(env, self._steps_made(env), call, error) from None
        warning, self._writer.warning = self._writer.warning, None
        if warning is not None and self._renewal is not None:
            self._renewal.failures.warn(f"environment {self._first_env_idx + env} gives observations {warning}")

    def _episode_steps(self, env: int) -> int:
        return self._num_rows - self._first_rows[env]

    def _steps_made(self, env: int) -> int:
        return self._finished_steps[env] + max(0, self._episode_steps(env))

    def _failed(self, env: int, call: str, error: Exception) -> EnvironmentCallFailed:
        return self._call_failed(env, self._steps_made(env), call, error)

    def _not_finite(self, env: int, what: str, values: FloatArray) -> NotFinite:
        text = f"gave a {what} that is not finite"
        return NotFinite(self._first_env_idx + env, self._steps_made(env), text, describe_not_finite(values))
