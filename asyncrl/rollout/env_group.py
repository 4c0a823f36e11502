"""The environments of one split, stepped one after the other in this process.

Environments are reset here and not by a wrapper, because rows follow the rule of `asyncrl.buffers.layout`.
"""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.buffers.control import TrainingInfo
from asyncrl.buffers.replay import StepRows
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import (
    NO_LIMIT,
    give_reward_shaping,
    give_training_info,
    numbers_at_end,
    step_problem,
    without_bookkeeping,
)
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch, store_rounded
from asyncrl.envs.spaces import seed_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import EpisodeRecord
from asyncrl.rollout.failures import (
    EnvironmentCallFailed,
    EnvironmentTrouble,
    LostStep,
    NotFinite,
    Recovery,
    WrongObservation,
    WrongResult,
)
from asyncrl.rollout.policy_mapping import PolicyMapping

log = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float32]
ObsArray = npt.NDArray[Any]
"""Rows of observations, see `asyncrl.envs.spec.ObservationLayout`."""


class EnvironmentGroup(ABC):
    """Environments that are stepped together: their records, and what happens when one of them fails.

    `envs` are single environments or one vectorized environment, each with a seed for its first reset. `first_env_idx`
    is the number of the first environment in the run. Without `recovery`, every failure is raised.

    Attributes:
        lost: steps that failed or were dropped, until `take_lost`.
        policies: which policy plays each column, set before the first reset; None with one policy.
        failures: of all groups of a worker; None without `recovery`.
        columns_of_one: columns of one of `envs`.
    """

    columns_of_one = 1

    def __init__(
        self, envs: Sequence[Any], seeds: Sequence[int], first_env_idx: int = 0, recovery: Recovery | None = None
    ) -> None:
        self.lost: list[LostStep] = []
        self.policies: PolicyMapping | None = None
        self._envs = list(envs)
        self._seeds: list[int | None] = list(seeds)
        for env, seed in zip(self._envs, seeds, strict=False):
            seed_spaces(env, seed)
        self._first_env_idx = first_env_idx
        self._recovery = recovery
        self.failures = None if recovery is None else recovery.failures
        self._num_recreated = 0
        self._episodes: list[EpisodeRecord] = []
        self._training_info = TrainingInfo()
        self._begun_before: set[int] = set()  # columns whose episode began before the newest message of observers
        self._begin_failures: dict[int, EnvironmentTrouble] = {}

    @property
    def envs(self) -> Sequence[Any]:
        """The environments, single or vectorized."""
        return self._envs

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def take_lost(self) -> list[LostStep]:
        """Lost steps since the last call."""
        lost, self.lost = self.lost, []
        return lost

    def record_dropped(self, num_samples: int) -> None:
        """Counts samples that were invalidated after they had been collected."""
        if self.failures is not None:
            self.failures.record_dropped(num_samples)

    def set_training_info(self, info: TrainingInfo) -> None:
        """Calls `set_training_info` of the environments that have it, and of those that are recreated later.

        An agent's reward shaping changes when its next episode begins.
        """
        before, self._training_info = self._training_info, info
        if info.of_observers is None or info.num_of_observers == before.num_of_observers:
            return
        self._begun_before = set(range(len(self._envs) * self.columns_of_one))
        for position, env in enumerate(self._envs):
            try:
                give_training_info(env, info.of_observers)
            except ENVIRONMENT_EXCEPTIONS as error:
                raise self._call_failed(position, "set_training_info", error) from error

    def close(self) -> None:
        """Closes all environments. A failure is logged: another one may be on its way to the runner."""
        for position, env in enumerate(self._envs):
            try:
                env.close()
            except ENVIRONMENT_EXCEPTIONS:
                log.warning("environment %d failed in close", self._first_env_idx + position, exc_info=True)

    @abstractmethod
    def _steps_made(self, position: int) -> int:
        """Environment steps so far, for messages and seeds."""

    def _recreate(self, position: int) -> None:
        assert self._recovery is not None
        steps = self._steps_made(position) + self._num_recreated
        with contextlib.suppress(*ENVIRONMENT_EXCEPTIONS):  # a failed environment may fail to close
            self._envs[position].close()
        try:
            self._envs[position] = self._recovery.make()
            seed = self._recovery.seed(self._first_env_idx + position, steps)
            seed_spaces(self._envs[position], seed)
            if self._training_info.of_observers is not None:
                give_training_info(self._envs[position], self._training_info.of_observers)
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(position, "being recreated", error) from error
        self._seeds[position] = seed

    def _begin_episodes(self, columns: Iterable[int]) -> None:
        """Chooses the policies of columns in which an episode begins, and gives environments their reward shaping."""
        columns = list(columns)
        if self.policies is not None:
            self.policies.begin(columns)
        shaping = self._training_info.reward_shaping
        for column in columns if shaping else ():
            position, agent = divmod(column, self.columns_of_one)
            policy_idx = 0 if self.policies is None else int(self.policies.policy_idx[column])
            if policy_idx >= len(shaping):  # an opponent, which does not train
                continue
            try:
                give_reward_shaping(self._envs[position], shaping[policy_idx], agent)
            except ENVIRONMENT_EXCEPTIONS as error:
                raise self._call_failed(position, "set_reward_shaping", error) from error

    def _begin_next_episodes(self, columns: Iterable[int]) -> None:
        """`_begin_episodes` after a step whose results are already stored: a failure counts as one of the next step."""
        try:
            self._begin_episodes(columns)
        except EnvironmentTrouble as trouble:
            self._begin_failures[trouble.env_idx - self._first_env_idx] = trouble

    def _record_episode(
        self,
        env: int,
        episode_return: float,
        length: int,
        extra_stats: dict[str, float],
        column: int | None = None,
        is_whole: bool = True,
    ) -> None:
        """Records that an episode of an environment has ended, in a separate column if it has several.

        Episodes of opponents, which do not train, are not recorded, nor are those that were shortened.
        """
        column = env if column is None else column
        policy_idx: int | None = 0
        told = self._training_info.num_of_observers
        if column in self._begun_before:
            self._begun_before.remove(column)
            told -= 1
        if self.policies is not None:
            policy_idx = self.policies.end(column, episode_return)
        if policy_idx is not None and is_whole:
            self._episodes.append(EpisodeRecord(episode_return, length, extra_stats, policy_idx, told))
        if self.failures is not None:
            self.failures.record_episode(self._first_env_idx + env)

    def _call_failed(self, env: int, call: str, error: BaseException) -> EnvironmentCallFailed:
        failed = EnvironmentCallFailed(self._first_env_idx + env, self._steps_made(env), f"failed in {call}")
        failed.__cause__ = error
        return failed

    def _wrong_observation(self, env: int, call: str, error: ObservationMismatch) -> WrongObservation:
        text = f"returned an observation from {call} that does not match its space"
        return WrongObservation(self._first_env_idx + env, self._steps_made(env), text, str(error))

    def _not_finite(self, env: int, floats: FloatArray, reward: Any = 0.0, name: str = "observation") -> NotFinite:
        """The error for NaN or infinity in the reward or in the numbers `[F]` of the observation."""
        if np.isfinite(reward):
            first = int(np.argmin(np.isfinite(floats)))
            detail = f"element {first} is {floats[first]}"
        else:
            name, detail = "reward", str(reward)
        article = "an" if name == "observation" else "a"
        text = f"gave {article} {name} that is not finite"
        return NotFinite(self._first_env_idx + env, self._steps_made(env), text, detail)


class HostEnvGroup(EnvironmentGroup):
    """A group that writes its steps into rows of a slot or a stripe. A row has C columns."""

    @abstractmethod
    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment and writes the observations to `obs [C, row_size]`."""

    @abstractmethod
    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Steps every environment whose row does not hold a final observation, and writes the results.

        Returns the number of environment steps, without lost ones.

        Args:
            actions: [C, A] float32 or [C] int64, as the distribution produced them.
            rows: where the results are written.

        Raises:
            EnvironmentTrouble: an environment failed, and the run cannot continue.
            EnvironmentsKeepFailing: environments failed too often.
        """

    def stagger_episodes(self) -> None:
        """Makes environments with episodes of fixed length run out of phase. Vectorized ones cannot do it."""

    @abstractmethod
    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """Writes the first row of a new slot from the last row of the previous slot, both `[C, row_size]`.

        Returns the columns that begin an episode in it: the last row held the final observation of a truncated one.
        """

    def end_slot(self, slots: TrajectorySlots, slot: int) -> None:
        """Changes the flags of a complete slot of several agents, whose end decides what is a sample in it."""

    @abstractmethod
    def _reset(self, position: int, obs_rows: ObsArray) -> None:
        """Resets one of `envs` and writes its first observation.

        Raises:
            EnvironmentTrouble: the reset failed, or the observation cannot be used.
        """

    def _start(self, position: int, obs_rows: ObsArray, trouble: EnvironmentTrouble | None = None) -> None:
        """Resets one of `envs`. After `trouble`, or if the reset fails, it is recreated first, until a reset succeeds.

        Raises:
            EnvironmentTrouble: the run cannot continue.
            EnvironmentsKeepFailing: there were too many failures.
        """
        while True:
            if trouble is not None:
                if self.failures is None:
                    raise trouble
                self.failures.record_failure(trouble)
                self._num_recreated += 1
            try:
                if trouble is not None:
                    self._recreate(position)
                self._reset(position, obs_rows)
                if self._begun_before:  # the new episodes have the newest message of observers
                    first = position * self.columns_of_one
                    self._begun_before.difference_update(range(first, first + self.columns_of_one))
                if self.failures is not None:
                    self.failures.count_turn()
                return
            except EnvironmentTrouble as another:
                trouble = another


def is_surely_finite(numbers: npt.NDArray[Any]) -> bool:
    """Whether all numbers are finite, in one pass; also False for some numbers beyond 1e19, which need another check.

    An infinity or NaN makes the sum of squares infinite or NaN. For 32 rows of 17 numbers this takes half of the time
    of a sum, and less than half of that of `isfinite`.
    """
    return math.isfinite(np.vdot(numbers, numbers))


_GOLDEN_RATIO = (math.sqrt(5.0) - 1.0) / 2.0


def staggered_length(env_idx: int, episode_length: int) -> int:
    """Length of the first episode of an environment, so that the phases of any group of neighbours are spread evenly.

    Multiples of the golden ratio, modulo 1, leave no large gap, however many environments there are.

    Args:
        env_idx: number of the environment in the run.
        episode_length: steps of a whole episode.
    """
    return max(1, round((env_idx + 1) * _GOLDEN_RATIO % 1.0 * episode_length))


class EnvGroup(HostEnvGroup):
    """Steps the single environments of a split. Owns them."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        seeds: Sequence[int],
        first_env_idx: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__(envs, seeds, first_env_idx, recovery)
        self._adapter = ActionAdapter(spec, mapping)
        self._codec = ObservationCodec(spec.observation)
        inner = [without_bookkeeping(env) for env in envs]
        self._steps = [env.step for env, _ in inner]
        self._resets = [env.reset for env, _ in inner]
        self._time_limits = [limit for _, limit in inner]
        self._holds_final_obs = [False] * len(envs)
        self._returns = [0.0] * len(envs)
        # Lengths of episodes and numbers of steps follow from the row's number, so no step counts them.
        self._num_rows = 0
        self._skipped_rows = [0] * len(envs)  # rows that are not environment steps
        self._first_rows = [0] * len(envs)  # the row of the first step of the episode
        self._last_rows = [0] * len(envs)  # the row at which the time limit is reached
        self._in_phase: set[int] = set()  # environments that have not had a shortened episode yet
        self._is_shortened = [False] * len(envs)  # the present episode is
        self._own_limits = [NO_LIMIT] * len(envs)  # length of an episode that the environment itself truncated

    def stagger_episodes(self) -> None:
        self._in_phase = set(range(len(self._envs)))

    def reset(self, obs: ObsArray) -> None:
        for env in range(len(self._envs)):
            self._holds_final_obs[env] = False
            self._start(env, obs)

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        # This loop runs for every environment step, so values that most environments share are written at once.
        rows.terminated[:] = rows.truncated[:] = False
        rows.valid[:] = True
        row, self._num_rows = self._num_rows, self._num_rows + 1
        num_final_rows, num_lost_before = 0, len(self.lost)
        rewards = [0.0] * len(self._envs)
        ended: list[tuple[int, bool, dict[str, float]]] = []
        returns, holds_final_obs, next_obs = self._returns, self._holds_final_obs, rows.next_obs
        steps, last_rows, codec, array_type = self._steps, self._last_rows, self._codec, np.ndarray
        for env, action in enumerate(self._adapter.to_env_batch(actions)):
            if holds_final_obs[env]:
                # The reset observation goes into the next row.
                rows.valid[env] = holds_final_obs[env] = False
                self._skipped_rows[env] += 1
                num_final_rows += 1
                self._start(env, next_obs)
                continue
            try:
                result = steps[env](action)
            except ENVIRONMENT_EXCEPTIONS as error:
                self._lose_step(env, rows, has_failed=True)
                self._start(env, next_obs, self._call_failed(env, "step", error))
                continue
            try:
                obs, reward, terminated, truncated, info = result
                reward = float(reward)
                if terminated or truncated or row == last_rows[env]:
                    ended.append((env, bool(terminated), numbers_at_end(info)))
            except Exception as error:
                self._lose_step(env, rows, has_failed=True)
                self._start(env, next_obs, self._wrong_result(env, result, error))
                continue
            rewards[env] = reward
            returns[env] += reward
            if not terminated:
                if type(obs) is array_type and obs.dtype is codec.dtype and obs.shape == codec.shape:
                    try:
                        next_obs[env] = obs
                    except FloatingPointError:  # NumPy raises where the environment's module wants it
                        store_rounded(next_obs[env], obs)
                else:
                    self._store_obs(env, obs, next_obs, "step")
        store_rounded(rows.reward, rewards)
        floats = next_obs if codec.dtype is not None else codec.floats(next_obs)
        if not (is_surely_finite(rows.reward) and is_surely_finite(floats)):
            self._drop_steps_not_finite(rows)
        for env, has_terminated, numbers in ended:
            if not rows.valid[env]:
                continue
            length = self._num_rows - self._first_rows[env]
            was_cut = self._is_shortened[env] and row == last_rows[env] and not has_terminated
            self._record_episode(env, returns[env], length, numbers, is_whole=not was_cut)
            if has_terminated:
                rows.terminated[env] = True
                self._start(env, next_obs)
            else:
                rows.truncated[env] = holds_final_obs[env] = True
                self._own_limits[env] = length
        return len(rewards) - num_final_rows - (len(self.lost) - num_lost_before)

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        np.copyto(first_obs, last_obs)
        restarted = [env for env, holds_final_obs in enumerate(self._holds_final_obs) if holds_final_obs]
        for env in restarted:
            self._holds_final_obs[env] = False
            self._start(env, first_obs)
        return restarted

    def _lose_step(self, env: int, rows: StepRows, has_failed: bool) -> None:
        """Marks the row as invalid. The caller starts a new episode in the next row."""
        rows.reward[env] = 0.0
        rows.valid[env] = False
        self._skipped_rows[env] += 1
        self.lost.append(LostStep(env, self._num_rows - 1 - self._first_rows[env], has_failed))

    def _wrong_result(self, env: int, result: Any, error: Exception) -> EnvironmentTrouble:
        """What to say of a result of `step` that cannot be read: `error` was raised by reading it."""
        problem = step_problem(result, is_end=True)
        if problem is None:
            return self._call_failed(env, "step", error)
        return WrongResult(self._first_env_idx + env, self._steps_made(env), "returned a wrong value", problem)

    def _drop_steps_not_finite(self, rows: StepRows) -> None:
        floats = self._codec.floats(rows.next_obs)
        is_finite = np.isfinite(rows.reward) & np.isfinite(floats).all(1)
        for env in np.flatnonzero(~is_finite).tolist():
            reward = rows.reward[env]
            self._lose_step(env, rows, has_failed=False)
            trouble = self._not_finite(env, floats[env], reward)
            if self.failures is None:
                raise trouble
            has_failed = self.failures.record_not_finite(trouble, self.lost[-1].episode_steps)
            self._start(env, rows.next_obs, trouble if has_failed else None)

    def _recreate(self, position: int) -> None:
        super()._recreate(position)
        inner, self._time_limits[position] = without_bookkeeping(self._envs[position])
        self._steps[position], self._resets[position] = inner.step, inner.reset

    def _reset(self, position: int, obs_rows: ObsArray) -> None:
        env, codec = position, self._codec
        seed, self._seeds[env] = self._seeds[env], None
        try:
            obs, _ = self._resets[env](seed=seed)
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(env, "reset", error) from error
        if type(obs) is np.ndarray and obs.dtype is codec.dtype and obs.shape == codec.shape:
            store_rounded(obs_rows[env], obs)
        else:
            self._store_obs(env, obs, obs_rows, "reset")
        floats = obs_rows[env] if codec.dtype is not None else codec.floats(obs_rows[env : env + 1])[0]
        if not np.isfinite(floats).all():
            raise self._not_finite(env, floats, name="first observation")
        self._returns[env] = 0.0
        self._first_rows[env] = self._num_rows
        self._last_rows[env] = self._num_rows + self._next_length(env) - 1
        if self.policies is not None or self._training_info.reward_shaping:
            self._begin_episodes((env,))

    def _next_length(self, env: int) -> int:
        """Most steps of the episode that begins: one episode of each environment is shortened, if they are staggered.

        It is the first, or the second where only an episode shows that the environment truncates it.
        """
        length = self._time_limits[env]
        whole = min(length, self._own_limits[env])
        self._is_shortened[env] = env in self._in_phase and whole < NO_LIMIT
        if self._is_shortened[env]:
            self._in_phase.remove(env)
            return staggered_length(self._first_env_idx + env, whole)
        return length

    def _store_obs(self, env: int, obs: Any, obs_rows: ObsArray, call: str) -> None:
        try:
            self._codec.write(obs, obs_rows[env])
        except ObservationMismatch as error:
            self._skipped_rows[env] += call == "step"  # this step does not count in the message
            raise self._wrong_observation(env, call, error) from None
        warning, self._codec.warning = self._codec.warning, None
        if warning is not None and self.failures is not None:
            self.failures.warn(f"environment {self._first_env_idx + env} gives observations {warning}")

    def _steps_made(self, position: int) -> int:
        return self._num_rows - self._skipped_rows[position]
