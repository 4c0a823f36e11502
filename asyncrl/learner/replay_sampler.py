"""Draws transitions from the replay, uniformly over all steps that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.algorithms.losses import continues
from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.pinning import to_device
from asyncrl.buffers.replay import UNKNOWN_VERSION, ReplayStripes
from asyncrl.observers.reports import SampleAges
from asyncrl.processes.seeding import Stream, derive_seed

_MOST_ROUNDS = 1000

IntArray = npt.NDArray[np.int64]


class ReplaySampler:
    """Draws batches from a replay in shared memory, or on a device. Owns its random generator.

    Attributes:
        generator: of the indices that are drawn; part of a checkpoint.
        ages: of the samples that `record_ages` has seen; the report takes them and sets it to `SampleAges()`.
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
        self.ages = SampleAges()
        self._n_step = n_step
        self._num_rows = n_step  # that must be complete, from the row that is drawn on
        self.gamma = gamma
        self.reward_divisor = 1.0
        self._reward_scale = reward_scale
        self._reward_clip = reward_clip
        self._obs = _flat(stripes.obs)
        self._action = _flat(stripes.action)
        self._reward = _flat(stripes.reward)
        self._terminated = _flat(stripes.terminated)
        self._truncated = _flat(stripes.truncated)
        self._valid = stripes.valid.reshape(-1)
        self._drawn = (np.empty(0, np.int64),) * 3  # splits, rows and environments of the last draw

    def sample(self, num_batches: int, batch_size: int) -> list[Transitions]:
        """Draws batches with replacement, into new memory.

        Raises:
            RuntimeError: no row of the replay, or hardly any, is the start of a transition.
        """
        wanted = num_batches * batch_size
        self._drawn = split, row, env = self._draw(wanted)
        drawn = self._gather(split, row, env)
        for _ in range(_MOST_ROUNDS):
            # Draw rows again that a worker has begun to overwrite meanwhile.
            oldest = np.array([self._stripes.first_whole_row(idx) for idx in range(self._stripes.num_splits)])
            (lost,) = np.nonzero(row < oldest[split])
            if len(lost) == 0:
                break
            split[lost], row[lost], env[lost] = self._draw(len(lost))
            for whole, part in zip(drawn, self._gather(split[lost], row[lost], env[lost]), strict=True):
                whole[torch.from_numpy(lost)] = part
        else:
            raise RuntimeError("the replay is overwritten faster than it can be read: raise --replay_size")
        tensors = drawn if drawn.obs.device == self._device else to_device(drawn, self._device)
        parts = (tensor.view(num_batches, batch_size, *tensor.shape[1:]) for tensor in tensors)
        kind = type(drawn)
        return [kind(*own) for own in zip(*parts, strict=True)]

    @property
    def num_missing_rows(self) -> int:
        """Rows that all stripes together must get before a transition is whole, whichever of them get the rows."""
        stripes, needed = self._stripes, self._num_rows + 1
        lengths = [stripes.num_rows[idx] - stripes.first_whole_row(idx) for idx in range(stripes.num_splits)]
        return 0 if max(lengths) >= needed else sum(needed - length for length in lengths)

    def record_ages(self, policy_version: int, num_replays: int = 1) -> None:
        """Adds the ages of the samples that `sample` has drawn last to `ages`.

        All splits, and all replays of a run, step about equally often, so a row stands for a step of each environment.

        Args:
            policy_version: of the networks that are trained with them.
            num_replays: replays of the run.
        """
        (split, row, _), stripes = self._drawn, self._stripes
        versions = stripes.policy_version[split, row % stripes.capacity]
        is_known = versions != UNKNOWN_VERSION
        num_known = int(np.count_nonzero(is_known))
        num_rows = np.array(stripes.num_rows)[split] - row
        self.ages += SampleAges(
            num_samples=len(row),
            env_steps=float(num_rows.sum()) * stripes.num_splits * stripes.num_envs * num_replays,
            num_of_known_policy=num_known,
            updates=float(num_known * policy_version - versions.sum(where=is_known, dtype=np.int64)),
        )

    def _draw(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Draws `count` starts as (split, row, environment), uniformly over valid rows."""
        stripes = self._stripes
        first = np.array([stripes.first_whole_row(idx) for idx in range(stripes.num_splits)])
        stop = np.array([stripes.num_rows[idx] for idx in range(stripes.num_splits)]) - (self._num_rows - 1)
        length = np.maximum(stop - first, 0)  # rows of each stripe that may be drawn
        ends = np.cumsum(length) * stripes.num_envs
        if ends[-1] == 0:
            raise self._nothing_whole()
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

    def _nothing_whole(self) -> RuntimeError:
        return RuntimeError(
            f"no transition of {self._num_rows} steps is whole yet: the longest stripe has "
            f"{max(self._stripes.num_rows)} rows; raise --warmup_env_steps"
        )

    def _places(self, split: Any, row: Any, env: Any) -> Any:
        """Indices into the flat fields, from arrays or tensors `[N]`."""
        stripes = self._stripes
        return (split * stripes.capacity + row % stripes.capacity) * stripes.num_envs + env

    def _gather(self, *where: IntArray) -> Transitions:
        """The transitions that start at (split, row, environment), where the replay is."""
        places, device = [torch.from_numpy(each) for each in where], self._reward.device
        split, row, env = places if device.type == "cpu" else to_device(places, device)
        start = self._places(split, row, env)
        reward = torch.zeros(len(row), device=start.device)
        discount = torch.ones_like(reward)
        steps = torch.zeros_like(start)
        goes_on = torch.ones_like(start, dtype=torch.bool)
        between_obs = self._obs.new_zeros((len(row), self._n_step - 1, *self._obs.shape[1:]))
        between_discount = reward.new_zeros((len(row), self._n_step - 1))
        place, terminated = start, goes_on
        for step in range(self._n_step):
            if step > 0:
                goes_on = goes_on & continues(True, terminated, self._truncated[place])
                place = self._places(split, row + step, env)
                between_obs[:, step - 1] = self._obs[torch.where(goes_on, place, start)]
                between_discount[:, step - 1] = torch.where(goes_on, discount, 0.0)
            step_reward = self._scaled(self._reward[place])
            reward += torch.where(goes_on, discount * step_reward, 0.0)
            discount = torch.where(goes_on, discount * self.gamma, discount)
            steps += goes_on
            terminated = self._terminated[place]
            discount = discount.masked_fill(goes_on & terminated, 0.0)
        after = self._places(split, row + steps, env)
        obs, next_obs, action = self._obs[start], self._obs[after], self._action[start]
        return Transitions(
            obs, action, reward, next_obs, discount, between_obs, between_discount, torch.ones_like(reward)
        )

    def _scaled(self, reward: Tensor) -> Tensor:
        """Rewards as networks learn them, from those of the environment."""
        reward = reward * self._reward_scale
        if self._reward_clip is not None:
            reward = reward.clamp(-self._reward_clip, self._reward_clip)
        return reward if self.reward_divisor == 1.0 else reward / self.reward_divisor


def _flat(field: Any) -> Tensor:
    """A view `[splits * rows * envs, ...]`."""
    return torch.as_tensor(field).flatten(0, 2)
