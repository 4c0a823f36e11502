"""The running standard deviation of discounted returns, by which rewards from a replay are divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.algorithms.losses import continues
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.learner.optimizer import RunningMoments, varies
from asyncrl.learner.ranks import Ranks


class ReturnScale:
    """Statistics of the discounted sum of rewards since an episode's start, of each step of all ranks' workers.

    The standard deviation is that of Gymnasium's `NormalizeReward` without its floor of 0.0001; with `limit` no such
    sum is divided by so little that it exceeds the limit. The learner reads the rewards from the
    replay in the order of their rows. Steps that workers overwrite before are left out, and the sums begin again with 0
    when a run is resumed.
    """

    def __init__(self, stripes: ReplayStripes, limit: float | None, ranks: Ranks) -> None:
        """Begins after the rows that the stripes hold."""
        self._stripes = stripes
        self._limit = limit
        self._ranks = ranks
        self._moments = RunningMoments(1, torch.device("cpu"), ranks)
        self._largest = 0.0
        self._next_row = list(stripes.num_rows)
        self._sums = np.zeros((stripes.num_splits, stripes.num_envs))

    @property
    def divisor(self) -> float:
        """The number by which rewards are divided; 1 before the first step."""
        mean, variance = self._moments.mean, self._moments.variance
        stddev = float(variance.sqrt().where(varies(mean, variance), 1.0)[0])
        return stddev if self._limit is None else max(stddev, self._largest / self._limit)

    def update(self, gamma: float, factor: float = 1.0, clip: float | None = None) -> None:
        """Adds the steps that were published since the last call; all ranks call it at the same time.

        Args:
            gamma: discount factor.
            factor: of rewards, before all else.
            clip: largest magnitude of the rewards after that.
        """
        found = []
        for split_idx, sums in enumerate(self._sums):
            stop, first = self._stripes.num_rows[split_idx], self._next_row[split_idx]
            start = max(first, self._stripes.first_whole_row(split_idx))
            if start > first:
                sums[:] = 0.0
            rows = np.arange(start, stop) % self._stripes.capacity
            for reward, terminated, truncated, valid in zip(*self._steps(split_idx, rows), strict=True):
                reward = reward * np.float64(factor)
                if clip is not None:
                    reward = reward.clip(-clip, clip)
                sums[valid] = gamma * sums[valid] + reward[valid]
                found.append(sums[valid])
                sums[~continues(valid, terminated, truncated)] = 0.0
            self._next_row[split_idx] = stop
        returns = np.concatenate(found) if found else np.empty(0)
        self._moments.update(torch.from_numpy(returns).unsqueeze(1))
        largest = max(self._largest, float(np.abs(returns).max(initial=0.0)))
        # Positive float64 numbers are ordered as the integers with the same bits.
        bits = self._ranks.gather([int(np.float64(largest).view(np.int64))])
        self._largest = float(np.int64(max(bits)[0]).view(np.float64))

    def _steps(self, split_idx: int, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], ...]:
        """Rewards, ends and `valid` of rows, given by their places, each `[rows, E]`; from a device in one transfer."""
        stripes = self._stripes
        fields = [field[split_idx, rows] for field in (stripes.reward, stripes.terminated, stripes.truncated)]
        if isinstance(fields[0], torch.Tensor):
            reward, *ends = torch.stack([field.float() for field in fields]).numpy(force=True)
            fields = [reward, *(end != 0.0 for end in ends)]
        return *fields, stripes.valid[split_idx, rows]

    def state_dict(self) -> dict[str, int | float]:
        """What continues in a resumed run."""
        moments = self._moments
        return {
            "count": moments.count,
            "mean": float(moments.mean[0]),
            "variance": float(moments.variance[0]),
            "largest": self._largest,
        }

    def take_from_first(self) -> None:
        """Continues from the state of rank 0 (all ranks, before the first `update`)."""
        state = self.state_dict()
        numbers = self._ranks.take_from_first(torch.tensor(list(state.values()), dtype=torch.float64))
        self.load_state_dict(dict(zip(state, numbers.tolist(), strict=True)))

    def load_state_dict(self, state: Mapping[str, int | float]) -> None:
        """Continues from the result of `state_dict`."""
        self._moments.count = int(state["count"])
        self._moments.mean.fill_(state["mean"])
        self._moments.variance.fill_(state["variance"])
        self._largest = float(state["largest"])
