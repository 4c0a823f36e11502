"""A vectorized environment of tensors, with the rows of `asyncrl.rollout.vector_env_group` on its device.

It uses masks instead of conditions, because a condition would make the host wait for the device in every step. Only
mode DISABLED, where environments do not reset themselves, and reward shaping need a condition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import stats_of_ends
from asyncrl.envs.observations import ObservationMismatch
from asyncrl.envs.spec import EnvSpec
from asyncrl.envs.tensors import TensorActions, TensorRows
from asyncrl.learner.dataset import places_of
from asyncrl.models.encoders import split_tensor
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.rollout.env_group import EnvironmentGroup
from asyncrl.rollout.failures import EnvironmentTrouble, WrongObservation
from asyncrl.rollout.vector_env_group import RowFlags, begins_episode, row_flags


class EpisodeEnds(NamedTuple):
    """The episodes of E environments that ended in a step, and numbers that are meant where one has ended.

    Attributes:
        ended: [E] bool, an episode ended, perhaps by a step that no row holds.
        episode_return: [E] float32.
        episode_length: [E] int64.
        extra_stats: [E] float32 by name; NaN for an environment without the number.
    """

    ended: Tensor
    episode_return: Tensor
    episode_length: Tensor
    extra_stats: dict[str, Tensor]


class TensorStep(NamedTuple):
    """Result of one step of E environments, as slots store it, and the episodes that ended.

    Attributes:
        next_rows: [E, row_size].
        reward: [E] float32, 0 where the row is not valid.
        terminated, truncated, valid: [E] bool.
        ends: the episodes that ended.
    """

    next_rows: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    ends: EpisodeEnds


class TensorEnvGroup(EnvironmentGroup):
    """Steps one vectorized environment of tensors. Owns it. Every failure ends the run."""

    @with_own_settings
    def __init__(
        self, env: VectorEnv[Any, Any, Any], seed: int, spec: EnvSpec, mapping: ActionMapping, device: torch.device
    ) -> None:
        super().__init__([env], [seed])
        self.num_envs: int = env.num_envs
        self.columns_of_one = env.num_envs
        self._env = env
        self._mode: AutoresetMode = env.metadata["autoreset_mode"]
        self._layout = spec.observation
        self._rows = TensorRows(spec, env.num_envs, device)
        self._actions = TensorActions(spec, mapping, device)
        self._holds_final_obs = torch.zeros(env.num_envs, dtype=torch.bool, device=device)
        self._reset_rows: Tensor | None = None
        self._returns = torch.zeros(env.num_envs, device=device)
        self._lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
        self._num_steps = 0

    def reset(self) -> Tensor:
        """Starts an episode in every environment; returns rows `[E, row_size]`."""
        seed, self._seeds[0] = self._seeds[0], None
        try:
            obs, _ = self._env.reset(seed=seed)
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(0, "reset", error) from error
        self._begun_before.clear()
        if self._training_info.reward_shaping:
            self._begin_episodes(range(self.num_envs))
        return self._rows_of(obs, "reset").clone()

    def step(self, actions: Tensor) -> TensorStep:
        """Steps all environments.

        Args:
            actions: [E, A] float32 or [E] int64, as the distribution produced them.
        """
        try:
            obs, reward, terminated, truncated, infos = self._env.step(self._actions.to_env(actions))
            terminated, truncated = terminated.bool(), truncated.bool()  # some simulators have other dtypes
        except ENVIRONMENT_EXCEPTIONS as error:
            raise self._call_failed(0, "step", error) from error
        flags = row_flags(self._mode, self._holds_final_obs, terminated, truncated)
        reward = reward.to(torch.float32)
        self._returns += torch.where(flags.is_step, reward, 0.0)
        self._lengths += flags.is_step
        extra_stats = {
            name: values.to(torch.float32).where(torch.ones_like(flags.ended) if has is None else has, torch.nan)
            for name, (values, has) in stats_of_ends(infos).items()
            if isinstance(values, Tensor)
        }
        step = TensorStep(
            self._next_rows(self._rows_of(obs, "step"), flags, infos),
            torch.where(flags.valid, reward, 0.0),
            flags.terminated,
            flags.truncated,
            flags.valid,
            EpisodeEnds(flags.ended, self._returns.clone(), self._lengths.clone(), extra_stats),
        )
        self._returns.masked_fill_(flags.ended, 0.0)
        self._lengths.masked_fill_(flags.ended, 0)
        self._holds_final_obs = flags.holds_final_obs
        self._num_steps += 1
        if self._training_info.reward_shaping:
            self._give_shaping(begins_episode(self._mode, flags))
        return step

    def start_trajectory(self, last_rows: Tensor) -> tuple[Tensor, Tensor]:
        """The first rows of a trajectory from the last rows of the previous one, as `VectorEnvGroup.start_slot`.

        Returned with [E] bool: the environments that start with a reset observation.
        """
        if self._mode == AutoresetMode.NEXT_STEP or self._reset_rows is None:
            return last_rows, torch.zeros_like(self._holds_final_obs)
        restarted = self._holds_final_obs
        self._holds_final_obs = torch.zeros_like(restarted)
        if self._training_info.reward_shaping:
            self._give_shaping(restarted)
        return torch.where(restarted.unsqueeze(-1), self._reset_rows, last_rows), restarted

    def record_ends(self, ends: Sequence[EpisodeEnds], num_ended: int) -> None:
        """Records the episodes that ended in consecutive steps, `num_ended` in all. Waits for the device once."""
        if num_ended == 0:
            return
        places = places_of(torch.stack([each.ended for each in ends]).flatten(), num_ended)
        missing = torch.full_like(ends[0].episode_return, torch.nan)
        names = list(dict.fromkeys(name for each in ends for name in each.extra_stats))
        columns = [
            [each.episode_return for each in ends],
            [each.episode_length for each in ends],
            *([each.extra_stats.get(name, missing) for each in ends] for name in names),
        ]
        of_ends = [torch.stack(column).flatten()[places].double() for column in columns]
        table = torch.stack([(places % self.num_envs).double(), *of_ends], dim=1)
        for env, episode_return, length, *extra_stats in table.tolist():
            named = zip(names, extra_stats, strict=True)
            own = {name: value for name, value in named if not math.isnan(value)}
            self._record_episode(0, episode_return, int(length), own, column=int(env))

    def not_finite(self) -> EnvironmentTrouble:
        """The error for a trajectory that contains NaN or infinity."""
        text = "or one beside it gave a reward or an observation that is not finite"
        return EnvironmentTrouble(0, self._num_steps, text)

    def _give_shaping(self, begins: Tensor) -> None:
        """Gives reward shaping to the environments that train and begin an episode, `[E]` bool. Waits for the device.

        Those that evaluate (`EvaluatingGroup`) keep the defaults.
        """
        self._begin_episodes(begins[: self.num_envs].nonzero().flatten().tolist())

    def _next_rows(self, rows: Tensor, flags: RowFlags, infos: dict[str, Any]) -> Tensor:
        """Rows with final observations after truncations and reset observations after terminations."""
        if self._mode == AutoresetMode.SAME_STEP:
            self._reset_rows = rows
            if "final_obs" in infos:
                return torch.where(flags.truncated.unsqueeze(-1), self._rows_of(infos["final_obs"], "step"), rows)
            if bool(flags.truncated.any()):
                text = "was truncated in autoreset mode SAME_STEP, but its infos have no final_obs,"
                raise WrongObservation(0, self._num_steps, text)
        elif self._mode == AutoresetMode.DISABLED and bool(flags.ended.any()):
            rows = rows.clone()  # a reset may overwrite them
            try:
                reset_obs, _ = self._env.reset(options={"reset_mask": flags.ended})
            except ENVIRONMENT_EXCEPTIONS as error:
                raise self._call_failed(0, "reset", error) from error
            self._reset_rows = self._rows_of(reset_obs, "reset")
            return torch.where((flags.ended & ~flags.truncated).unsqueeze(-1), self._reset_rows, rows)
        elif self._mode == AutoresetMode.NEXT_STEP:
            # Nothing reads the final observation of a terminated episode, which some environments end with NaN.
            is_finite = torch.isfinite(split_tensor(self._layout, rows).floats).all(1)
            return rows.masked_fill((flags.terminated & ~is_finite).unsqueeze(-1), 0)
        return rows

    def _rows_of(self, observations: Any, call: str) -> Tensor:
        try:
            return self._rows.rows_of(observations)
        except ObservationMismatch as error:
            raise self._wrong_observation(0, call, error) from None

    def _steps_made(self, position: int) -> int:
        return self._num_steps
