"""A vectorized environment of tensors, stepped by the row rules of `asyncrl.rollout.vector_env_group` on its device.

Where that one looks whether anything has ended, this one computes with masks: a look would make the host wait for the
device in every step. Only where environments do not reset themselves (DISABLED) there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from asyncrl.config.schema import ActionMapping
from asyncrl.envs.interface import give_training_info
from asyncrl.envs.observations import ObservationMismatch
from asyncrl.envs.spec import EnvSpec
from asyncrl.envs.tensors import TensorActions, TensorRows
from asyncrl.monitoring.reports import EnvironmentFailures, EpisodeRecord
from asyncrl.rollout.failures import EnvironmentCallFailed, EnvironmentTrouble, WrongObservation


class TensorStep(NamedTuple):
    """What one step of E environments gives, as slots store it, and the episodes that ended.

    Attributes:
        next_rows: [E, row_size].
        reward: [E] float32, 0 where the row is not valid.
        terminated, truncated, valid: [E] bool.
        ended: [E] bool, environments whose episode ended, by a step that no row shows as well.
        episode_return: [E] float32, of those.
        episode_length: [E] int64, of those.
    """

    next_rows: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    ended: Tensor
    episode_return: Tensor
    episode_length: Tensor


class TensorEnvGroup:
    """Steps one vectorized environment. Owns it and its episode counters, which are on the device, too."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], seed: int, spec: EnvSpec, mapping: ActionMapping, device: torch.device
    ) -> None:
        """Takes ownership of `env`, whose metadata names its autoreset mode; `seed` is used at the first reset."""
        self._env = env
        self._seed: int | None = seed
        self._mode: AutoresetMode = env.metadata["autoreset_mode"]
        self._rows = TensorRows(spec, env.num_envs, device)
        self._actions = TensorActions(spec, mapping, device)
        self._holds_final_obs = torch.zeros(env.num_envs, dtype=torch.bool, device=device)
        self._reset_rows: Tensor | None = None
        self._returns = torch.zeros(env.num_envs, device=device)
        self._lengths = torch.zeros(env.num_envs, dtype=torch.int64, device=device)
        self._num_steps = 0
        self._episodes: list[EpisodeRecord] = []

    def __len__(self) -> int:
        return int(self._env.num_envs)

    def reset(self) -> Tensor:
        """Starts an episode in every environment; returns rows `[E, row_size]`."""
        seed, self._seed = self._seed, None
        try:
            obs, _ = self._env.reset(seed=seed)
        except Exception as error:
            raise self._failed("reset") from error
        self._holds_final_obs.zero_()
        return self._rows_of(obs, "reset").clone()

    def step(self, actions: Tensor) -> TensorStep:
        """Takes one step in every environment.

        Args:
            actions: [E, A] float32 or [E] int64, as the distribution produced them.
        """
        try:
            obs, reward, terminated, truncated, infos = self._env.step(self._actions.to_env(actions))
        except Exception as error:
            raise self._failed("step") from error
        valid = ~self._holds_final_obs
        resets_in_next_step = self._mode == AutoresetMode.NEXT_STEP
        is_step = valid if resets_in_next_step else torch.ones_like(valid)
        ended = (terminated | truncated) & is_step
        terminated, truncated = terminated & valid, truncated & ~terminated & valid
        reward = reward.to(torch.float32)
        self._returns += torch.where(is_step, reward, 0.0)
        self._lengths += is_step
        step = TensorStep(
            self._next_rows(self._rows_of(obs, "step"), ended, truncated, infos),
            torch.where(valid, reward, 0.0),
            terminated,
            truncated,
            valid,
            ended,
            self._returns.clone(),
            self._lengths.clone(),
        )
        self._returns.masked_fill_(ended, 0.0)
        self._lengths.masked_fill_(ended, 0)
        self._holds_final_obs = ended if resets_in_next_step else truncated
        self._num_steps += 1
        return step

    def begin(self, last_rows: Tensor) -> tuple[Tensor, Tensor]:
        """The first rows of a trajectory from the last ones of that before, as `VectorEnvGroup.start_slot` has them.

        Returns:
            The rows, and [E] bool: the environments that begin with a reset observation that stands in no row before.
        """
        if self._mode == AutoresetMode.NEXT_STEP or self._reset_rows is None:
            return last_rows, torch.zeros_like(self._holds_final_obs)
        begun = self._holds_final_obs
        self._holds_final_obs = torch.zeros_like(begun)
        return torch.where(begun.unsqueeze(-1), self._reset_rows, last_rows), begun

    def note_episodes(self, returns: list[float], lengths: list[int]) -> None:
        """Keeps episodes that have ended, when somebody has looked at the device."""
        self._episodes.extend(EpisodeRecord(*episode) for episode in zip(returns, lengths, strict=True))

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes noted since the last call."""
        episodes, self._episodes = tuple(self._episodes), []
        return episodes

    def take_failures(self) -> EnvironmentFailures:
        """Nothing: a failure ends the run."""
        return EnvironmentFailures()

    def set_training_info(self, info: Mapping[str, Any]) -> None:
        """Gives a dict to the environment if it takes one."""
        try:
            give_training_info(self._env, info)
        except Exception as error:
            raise self._failed("set_training_info") from error

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def not_finite(self) -> EnvironmentTrouble:
        """What is to be said of rewards or observations that are not finite."""
        text = "or one beside it gave a reward or an observation that is not finite"
        return EnvironmentTrouble(0, self._num_steps, text)

    def _next_rows(self, rows: Tensor, ended: Tensor, truncated: Tensor, infos: dict[str, Any]) -> Tensor:
        """Puts final observations where the next row holds one, reset ones where it does not, and keeps the others."""
        if self._mode == AutoresetMode.SAME_STEP:
            self._reset_rows = rows
            if "final_obs" in infos:
                return torch.where(truncated.unsqueeze(-1), self._rows_of(infos["final_obs"], "step"), rows)
            if bool(truncated.any()):
                text = "was truncated in autoreset mode SAME_STEP, but its infos have no final_obs,"
                raise WrongObservation(0, self._num_steps, text)
        elif self._mode == AutoresetMode.DISABLED and bool(ended.any()):
            rows = rows.clone()  # a reset may write where they are
            try:
                reset_obs, _ = self._env.reset(options={"reset_mask": ended})
            except Exception as error:
                raise self._failed("reset") from error
            self._reset_rows = self._rows_of(reset_obs, "reset")
            return torch.where((ended & ~truncated).unsqueeze(-1), self._reset_rows, rows)
        return rows

    def _rows_of(self, observations: Any, call: str) -> Tensor:
        try:
            return self._rows.rows_of(observations)
        except ObservationMismatch as error:
            text = f"returned an observation from {call} that does not match its space"
            raise WrongObservation(0, self._num_steps, text, str(error)) from None

    def _failed(self, call: str) -> EnvironmentCallFailed:
        return EnvironmentCallFailed(0, self._num_steps, f"failed in {call}")
