"""Draws transitions from the replay, uniformly over all steps that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.algorithms.losses import continues
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.runtime.seeding import Stream, derive_seed

_MOST_ROUNDS = 1000

IntArray = npt.NDArray[np.int64]


class ReplaySampler:
    """Draws batches from shared memory. Owns its random generator.

    Attributes:
        generator: of the indices that are drawn; part of a checkpoint.
        gamma: discount factor of the next transitions.
        reward_divisor: divides their rewards, after `reward_scale` and `reward_clip`.
    """

    def __init__(
        self,
        stripes: ReplayStripes,
        n_step: int,
        gamma: float,
        reward_scale: float,
        reward_clip: float | None,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        """Prepares to draw transitions of `n_step` steps, or fewer where an episode ends, on `device` (or the CPU)."""
        self._device = device or torch.device("cpu")
        self.generator = torch.Generator().manual_seed(derive_seed(seed, Stream.REPLAY))
        self._stripes = stripes
        self._n_step = n_step
        self.gamma = gamma
        self.reward_divisor = 1.0
        self._reward_scale = reward_scale
        self._reward_clip = reward_clip
        self._obs = _flat(stripes.obs)
        self._action = _flat(stripes.action)
        self._reward = _flat(stripes.reward)
        self._terminated = _flat(stripes.terminated)
        self._truncated = _flat(stripes.truncated)
        self._valid = _flat(stripes.valid)

    def sample(self, num_batches: int, batch_size: int) -> list[Transitions]:
        """Draws batches with replacement, into new memory.

        Raises:
            RuntimeError: no row of the replay, or hardly any, is the start of a transition.
        """
        wanted = num_batches * batch_size
        split, row, env = self._draw(wanted)
        drawn = self._gather(split, row, env)
        for _ in range(_MOST_ROUNDS):
            # Draw rows again that a worker has begun to overwrite meanwhile.
            oldest = np.array([self._stripes.first_whole_row(idx) for idx in range(self._stripes.num_splits)])
            (lost,) = np.nonzero(row < oldest[split])
            if len(lost) == 0:
                break
            split[lost], row[lost], env[lost] = self._draw(len(lost))
            for whole, part in zip(drawn, self._gather(split[lost], row[lost], env[lost]), strict=True):
                whole[lost] = part
        else:
            raise RuntimeError("the replay is overwritten faster than it can be read: raise --replay_size")
        tensors = to_device([torch.from_numpy(array) for array in drawn], self._device)
        parts = (tensor.view(num_batches, batch_size, *tensor.shape[1:]) for tensor in tensors)
        return [Transitions(*fields) for fields in zip(*parts, strict=True)]

    def _draw(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Draws `count` starts as (split, row, environment), uniformly over valid rows."""
        stripes = self._stripes
        first = np.array([stripes.first_whole_row(idx) for idx in range(stripes.num_splits)])
        stop = np.array([stripes.num_rows[idx] for idx in range(stripes.num_splits)]) - (self._n_step - 1)
        length = np.maximum(stop - first, 0)  # rows of each stripe that may be drawn
        ends = np.cumsum(length) * stripes.num_envs
        if ends[-1] == 0:
            raise RuntimeError(
                f"no transition of {self._n_step} steps is whole yet: the longest stripe has "
                f"{max(stripes.num_rows)} rows; raise --warmup_env_steps"
            )
        found: list[IntArray] = []
        missing = count
        for _ in range(_MOST_ROUNDS):
            number = torch.randint(int(ends[-1]), (missing,), generator=self.generator).numpy()
            split = np.searchsorted(ends, number, side="right")
            row, env = np.divmod(number - (ends - length * stripes.num_envs)[split], stripes.num_envs)
            drawn = np.stack((split, row + first[split], env))
            drawn = drawn[:, self._valid[self._places(*drawn)]]
            found.append(drawn)
            missing -= drawn.shape[1]
            if missing == 0:
                split, row, env = np.concatenate(found, axis=1)
                return split, row, env
        raise RuntimeError("hardly any row of the replay is the start of a transition")

    def _places(self, split: IntArray, row: IntArray, env: IntArray) -> IntArray:
        """Indices into the flat fields."""
        stripes = self._stripes
        places: IntArray = (split * stripes.capacity + row % stripes.capacity) * stripes.num_envs + env
        return places

    def _gather(self, split: IntArray, row: IntArray, env: IntArray) -> tuple[npt.NDArray[Any], ...]:
        """Reads the fields of `Transitions`, the transitions in the first dimension."""
        start = self._places(split, row, env)
        reward = np.zeros(len(row), np.float32)
        discount = np.ones(len(row), np.float32)
        steps = np.zeros(len(row), np.int64)
        goes_on = np.ones(len(row), np.bool_)
        between_obs = np.zeros((len(row), self._n_step - 1, *self._obs.shape[1:]), self._obs.dtype)
        between_discount = np.zeros((len(row), self._n_step - 1), np.float32)
        for step in range(self._n_step):
            place = start if step == 0 else self._places(split, row + step, env)
            if step > 0:
                between_obs[:, step - 1] = np.take(self._obs, np.where(goes_on, place, start), axis=0)
                between_discount[:, step - 1] = np.where(goes_on, discount, np.float32(0.0))
            step_reward = self._reward[place] * np.float32(self._reward_scale)
            if self._reward_clip is not None:
                step_reward = np.clip(step_reward, -self._reward_clip, self._reward_clip)
            if self.reward_divisor != 1.0:
                step_reward /= np.float32(self.reward_divisor)
            reward += np.where(goes_on, discount * step_reward, np.float32(0.0))
            discount[goes_on] *= np.float32(self.gamma)
            steps += goes_on
            has_terminated = goes_on & self._terminated[place]
            discount[has_terminated] = 0.0
            goes_on &= continues(True, self._terminated[place], self._truncated[place])
        after = self._places(split, row + steps, env)
        obs, next_obs = np.take(self._obs, start, axis=0), np.take(self._obs, after, axis=0)
        action = np.take(self._action, start, axis=0)
        return obs, action, reward, next_obs, discount, between_obs, between_discount


def _flat(field: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view `[splits * rows * envs, ...]`."""
    return field.reshape(-1, *field.shape[3:])


class Transitions(NamedTuple):
    """B transitions of n steps each, or fewer where an episode ends.

    Attributes:
        obs: [B, D] float32 or uint8, raw.
        action: [B, A] float32 or [B] int64, as the distribution produced it (before squashing).
        reward: [B] float32, discounted sum over the transition's steps.
        next_obs: [B, D], raw, after its last step.
        discount: [B] float32, weight of the value of `next_obs`: gamma ** steps, and 0 where the episode terminated.
        between_obs: [B, n - 1, D], raw, before the second and each later step; arbitrary where there is no such step.
        between_discount: [B, n - 1] float32, weight of the policy's entropy there: gamma ** k before step k + 1, and 0
            where there is no such step.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    between_obs: Tensor
    between_discount: Tensor

    def to(self, device: torch.device) -> Transitions:
        """The same transitions on `device`; fields that are there already are not copied."""
        return Transitions(*(tensor.to(device) for tensor in self))


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same tensors on a device; to a CUDA device from page-locked memory, so that the host does not wait."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
