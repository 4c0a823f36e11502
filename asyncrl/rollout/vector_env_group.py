"""The environments of one split as one vectorized environment.

A vectorized environment steps all of its environments or none, and resets those that ended in one of three ways
(`gymnasium.vector.AutoresetMode`). After a truncation, the final observation has its own row, which is not valid. What
the environment does in the step of that row depends on the mode:

NEXT_STEP   It is reset and ignores its action. After a termination this happens as well: the final observation has a
            row.
SAME_STEP   It was reset in the step that ended the episode, so it makes the first step of the next episode, with an
            action that was chosen for another observation. This step is lost: no row holds it. The next row is its
            result, with the recurrent state of a new episode. If a slot ends there, no step is lost.
DISABLED    As SAME_STEP, but the group resets it, immediately: otherwise it could not be stepped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.buffers.replay import StepRows
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import numbers_among, stats_of_ends
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch, one_of_batch
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.env_group import FloatArray, HostEnvGroup, ObsArray, is_surely_finite
from asyncrl.rollout.failures import EnvironmentTrouble, LostStep, NotFinite, Recovery


class RowFlags(NamedTuple):
    """Meaning of one step's row for E environments, each `[E]` bool, as arrays or tensors.

    Attributes:
        valid: the row is a sample.
        is_step: the environment made a step of an episode; it may belong to no row (see the module).
        ended: an episode ended in this step.
        terminated, truncated: as stored in the row.
        holds_final_obs: the next row holds a final observation, so it is not valid.
    """

    valid: Any
    is_step: Any
    ended: Any
    terminated: Any
    truncated: Any
    holds_final_obs: Any


def row_flags(mode: AutoresetMode, holds_final_obs: Any, terminated: Any, truncated: Any) -> RowFlags:
    """Applies the row rule of `asyncrl.buffers.layout` to the step of a vectorized environment.

    Args:
        mode: autoreset mode of the environment.
        holds_final_obs: [E] bool, whether this step's row holds a final observation.
        terminated: [E] bool, as the environment returned it.
        truncated: [E] bool, as the environment returned it.
    """
    valid = ~holds_final_obs
    is_step = valid if mode == AutoresetMode.NEXT_STEP else valid | True
    ended = (terminated | truncated) & is_step
    terminated = terminated & valid
    truncated = truncated & valid & ~terminated
    holds_final_obs = ended if mode == AutoresetMode.NEXT_STEP else truncated
    return RowFlags(valid, is_step, ended, terminated, truncated, holds_final_obs)


def begins_episode(mode: AutoresetMode, flags: RowFlags) -> Any:
    """Whether the row after a step begins an episode: it does after the row of a final observation, `[E]` bool."""
    begins = ~flags.valid
    return begins if mode == AutoresetMode.NEXT_STEP else begins | flags.terminated


class VectorEnvGroup(HostEnvGroup):
    """Steps one vectorized environment. Owns it.

    Its environments cannot be reset or recreated separately: if one fails, or returns NaN or infinity, the steps of all
    are lost. Its metadata names its autoreset mode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seed: int,
        first_env_idx: int,
        spec: EnvSpec,
        mapping: ActionMapping,
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__([env], [seed], first_env_idx, recovery)
        self._adapter = ActionAdapter(spec, mapping)
        self._codec = ObservationCodec(spec.observation)
        self._mode: AutoresetMode = env.metadata["autoreset_mode"]
        self._holds_final_obs = np.zeros(env.num_envs, dtype=np.bool_)
        self._reset_obs = np.zeros((env.num_envs, spec.observation.row_size), dtype=spec.observation.row_dtype)
        self._returns = np.zeros(env.num_envs)
        self.columns_of_one = env.num_envs
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._num_rows = np.zeros(env.num_envs, dtype=np.int64)  # valid rows of the present episodes
        self._num_steps = 0

    def reset(self, obs: ObsArray) -> None:
        self._start(0, obs)

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        if self._begin_failures:
            return self._lose_all(rows, self._begin_failures.pop(0))
        try:
            obs, reward, *ends, infos = self._envs[0].step(self._adapter.to_vector_env(actions))
            terminated, truncated = (np.asarray(end, dtype=np.bool_) for end in ends)
            flags = row_flags(self._mode, self._holds_final_obs, terminated, truncated)
            np.multiply(reward, flags.valid, out=rows.reward, casting="unsafe")
        except ENVIRONMENT_EXCEPTIONS as error:  # values that cannot be read, too
            return self._lose_all(rows, self._call_failed(0, "step", error))
        rows.terminated[:], rows.truncated[:], rows.valid[:] = flags.terminated, flags.truncated, flags.valid
        self._store_obs(obs, rows.next_obs, "step")
        has_ended = flags.ended.any()
        if has_ended and self._mode == AutoresetMode.NEXT_STEP:
            floats = self._codec.floats(rows.next_obs)
            if not is_surely_finite(floats):
                # Nothing reads the final observation of a terminated episode, which some environments end with NaN.
                rows.next_obs[flags.terminated & ~np.isfinite(floats).all(1)] = 0
        try:
            if has_ended and self._mode != AutoresetMode.NEXT_STEP:
                self._arrange_obs(flags, infos, rows.next_obs)
                self._require_finite(np.zeros_like(rows.reward), self._codec.floats(self._reset_obs))
            self._require_finite(rows.reward, self._codec.floats(rows.next_obs))
        except EnvironmentTrouble as trouble:
            return self._lose_all(rows, trouble)
        self._returns += np.where(flags.is_step, reward, 0.0)
        self._lengths += flags.is_step
        self._num_rows += flags.valid
        self._holds_final_obs = flags.holds_final_obs
        if has_ended:
            stats = stats_of_ends(infos)
            for env in map(int, np.flatnonzero(flags.ended)):
                own = {name: values[env] for name, (values, has) in stats.items() if has is None or has[env]}
                self._record_episode(env, float(self._returns[env]), int(self._lengths[env]), numbers_among(own))
            self._returns[flags.ended] = 0.0
            self._lengths[flags.ended] = self._num_rows[flags.ended] = 0
        self._num_steps += 1
        if self.policies is not None or self._training_info.reward_shaping:
            self._begin_next_episodes(np.flatnonzero(begins_episode(self._mode, flags)).tolist())
        return int(flags.valid.sum())

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """See `HostEnvGroup`; in mode NEXT_STEP the next step resets, so the final observation is in both rows."""
        np.copyto(first_obs, last_obs)
        if self._mode == AutoresetMode.NEXT_STEP:
            return []
        restarted = np.flatnonzero(self._holds_final_obs)
        first_obs[restarted] = self._reset_obs[restarted]
        self._holds_final_obs[:] = False
        if self.policies is not None or self._training_info.reward_shaping:
            self._begin_next_episodes(restarted.tolist())
        return [int(env) for env in restarted]

    def _arrange_obs(self, flags: RowFlags, infos: dict[str, Any], next_obs: ObsArray) -> None:
        """Writes final observations after truncations and reset observations after terminations to `next_obs`.

        Reset observations that follow a final observation are kept in `_reset_obs`.
        """
        if self._mode == AutoresetMode.SAME_STEP:
            self._reset_obs[flags.truncated] = next_obs[flags.truncated]
            for env in map(int, np.flatnonzero(flags.truncated)):
                self._store_final_obs(env, infos, next_obs[env])
            return
        try:
            reset_obs, _ = self._envs[0].reset(options={"reset_mask": flags.ended})
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(0, "reset", error) from error
        self._store_obs(reset_obs, self._reset_obs, "reset")
        terminated = flags.ended & ~flags.truncated
        next_obs[terminated] = self._reset_obs[terminated]

    def _store_final_obs(self, env: int, infos: dict[str, Any], row: ObsArray) -> None:
        try:
            if "final_obs" not in infos:
                raise ObservationMismatch(
                    "an episode was truncated in autoreset mode SAME_STEP, but its infos have no final_obs"
                )
            self._codec.write(one_of_batch(infos["final_obs"], env), row)
        except ObservationMismatch as error:
            raise self._wrong_observation(env, "step", error) from None

    def _lose_all(self, rows: StepRows, trouble: EnvironmentTrouble) -> int:
        """Marks the row as invalid in all environments and starts new episodes in the next row."""
        if self.failures is None:
            raise trouble
        num_samples = int((~self._holds_final_obs).sum())
        lengths = self._num_rows.tolist()
        has_failed = True
        if isinstance(trouble, NotFinite):
            env = trouble.env_idx - self._first_env_idx
            has_failed = self.failures.record_not_finite(trouble, lengths[env])
            self.record_dropped(num_samples - 1)
        rows.reward[:] = 0.0
        rows.terminated[:] = rows.truncated[:] = rows.valid[:] = False
        self.lost.extend(LostStep(env, length, has_failed) for env, length in enumerate(lengths))
        self._start(0, rows.next_obs, trouble if has_failed else None)
        return 0

    def _reset(self, position: int, obs_rows: ObsArray) -> None:
        seed, self._seeds[position] = self._seeds[position], None
        try:
            obs, _ = self._envs[position].reset(seed=seed)
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(0, "reset", error) from error
        self._store_obs(obs, obs_rows, "reset")
        self._holds_final_obs[:] = False
        self._reset_obs[:] = 0
        self._returns[:] = 0.0
        self._lengths[:] = self._num_rows[:] = 0
        if self.policies is not None or self._training_info.reward_shaping:
            self._begin_episodes(range(len(self._returns)))

    def _store_obs(self, obs: Any, obs_rows: ObsArray, call: str) -> None:
        try:
            self._codec.write_batch(obs, obs_rows)
        except ObservationMismatch as error:
            raise self._wrong_observation(0, call, error) from None

    def _require_finite(self, reward: FloatArray, floats: FloatArray) -> None:
        if is_surely_finite(reward) and is_surely_finite(floats):
            return
        is_finite = np.isfinite(reward) & np.isfinite(floats).all(1)
        if not is_finite.all():
            env = int(np.argmin(is_finite))
            raise self._not_finite(env, floats[env], reward[env])

    def _steps_made(self, position: int) -> int:
        return self._num_steps
