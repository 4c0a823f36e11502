"""Draws transitions from the replay by priority: those whose errors were large more often (prioritized replay).

Schaul et al. 2016, "Prioritized Experience Replay" (arXiv:1511.05952), the proportional variant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.buffers.pinning import to_device
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.replay_sampler import IntArray, ReplaySampler

_SMALLEST_ERROR = 1e-6

FloatArray = npt.NDArray[np.float32]


def importance_exponent(config: TrainConfig, env_steps: int) -> float:
    """The power beta of the weights after so many environment steps: it rises linearly to 1 (section 3.4)."""
    first = config.prioritized_replay_beta
    return first + min(1.0, env_steps / config.train_for_env_steps) * (1.0 - first)


class SumTree:
    """Numbers that are not negative, and the sums over halves, quarters, ... of them, in one array.

    Node 1 is the sum of all; node n is the sum of nodes 2n and 2n + 1. The last level has the numbers themselves.
    """

    def __init__(self, size: int) -> None:
        """Starts with `size` zeros."""
        self._first_leaf = 1 << (size - 1).bit_length()
        self._nodes = np.zeros(2 * self._first_leaf)

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._nodes[1])

    def get(self, indices: IntArray) -> npt.NDArray[np.float64]:
        """The numbers at `indices: [N]`."""
        numbers: npt.NDArray[np.float64] = self._nodes[self._first_leaf + indices]
        return numbers

    def set(self, indices: IntArray, numbers: npt.ArrayLike) -> None:
        """Replaces the numbers at `indices: [N]`; of one that is there several times the last number stays."""
        nodes = self._first_leaf + indices
        self._nodes[nodes] = numbers
        for _ in range(self._first_leaf.bit_length() - 1):
            nodes >>= 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, sums: npt.NDArray[np.float64]) -> IntArray:
        """For `sums: [N]` in [0, total): the index at which the running sum over all numbers passes each of them.

        A number that is 0 is never found, whatever the rounding of sums.
        """
        nodes, sums = np.ones(len(sums), np.int64), sums.copy()
        for _ in range(self._first_leaf.bit_length() - 1):
            nodes *= 2
            left = self._nodes[nodes]
            goes_right = (sums >= left) & (self._nodes[nodes + 1] > 0.0)
            sums -= np.where(goes_right, left, 0.0)
            nodes += goes_right
        return nodes - self._first_leaf


class PrioritizedSampler(ReplaySampler):
    """Owns the priorities of all rows: in a tree, and in `stripes.priority`, from which checkpoints are written.

    A row enters the tree with the largest priority so far, when the cursor has passed its transition and it is valid.
    It leaves when its worker may overwrite it. Workers know nothing of priorities.

    Attributes:
        max_priority: the largest priority that an error gave so far; 0 before the first.
    """

    def __init__(
        self, stripes: ReplayStripes, alpha: float, beta: float, max_priority: float = 0.0, **settings: Any
    ) -> None:
        """Takes rows that a checkpoint restored with their priorities; `settings` are those of `ReplaySampler`.

        Args:
            stripes: the replay.
            alpha: priorities are errors to this power; 0 draws all rows equally often.
            beta: weights are probabilities to the power of minus this.
            max_priority: of the checkpoint.
            settings: further arguments of `ReplaySampler`.
        """
        super().__init__(stripes, **settings)
        assert stripes.priority is not None
        self._priority: FloatArray = stripes.priority.reshape(-1)
        self._tree = SumTree(self._priority.size)
        self._alpha, self.beta = alpha, beta
        self.max_priority = max_priority
        self._first = np.zeros(stripes.num_splits, np.int64)  # rows from here to `_stop` are in the tree
        self._stop = np.zeros(stripes.num_splits, np.int64)
        restored = self._priority.copy()
        self.refresh()
        (known,) = np.nonzero((restored > 0.0) & (self._priority > 0.0))
        self._set(known, restored[known])

    def refresh(self) -> None:
        """Adds rows that were written since the last call, and drops those that workers may overwrite."""
        stripes, changed, priorities = self._stripes, [], []
        for split in range(stripes.num_splits):
            first, before = stripes.first_whole_row(split), int(self._stop[split])
            stop = max(stripes.num_rows[split] - (self._n_step - 1), before)
            dropped = self._row_places(split, int(self._first[split]), min(first, before))
            added = self._row_places(split, max(first, before), stop)
            changed += [dropped, added]  # a row may be added where another one was dropped
            priorities += [np.zeros(len(dropped)), self._valid[added] * (self.max_priority or 1.0)]
            self._first[split], self._stop[split] = first, stop
        self._set(np.concatenate(changed), np.concatenate(priorities))

    def set_errors(self, errors: torch.Tensor) -> None:
        """Sets the priorities of the rows of the last `sample` from their errors `[num_batches, B]`, at least 0.

        Rows that were overwritten since, and errors that are not finite, are left out.
        """
        split, row, env = self._drawn
        self.refresh()
        given = errors.cpu().numpy().reshape(-1)
        (kept,) = np.nonzero((row >= self._first[split]) & np.isfinite(given))
        priorities = (given[kept] + np.float32(_SMALLEST_ERROR)) ** np.float32(self._alpha)
        self.max_priority = max(self.max_priority, float(priorities.max(initial=0.0)))
        self._set(self._places(split[kept], row[kept], env[kept]), priorities)

    def _draw(self, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Draws `count` starts as (split, row, environment), each with the share of its priority in the sum of all."""
        self.refresh()
        stripes, total = self._stripes, self._tree.total
        if total <= 0.0:
            raise self._nothing_whole()
        uniform = torch.rand(count, generator=self.generator, dtype=torch.float64).numpy()
        place, env = np.divmod(self._tree.find(uniform * total), stripes.num_envs)
        split, index = np.divmod(place, stripes.capacity)
        first = self._first[split]
        return split, first + (index - first) % stripes.capacity, env

    def sample(self, num_batches: int, batch_size: int) -> list[Transitions]:
        """See `ReplaySampler`; weights are (N P) ** -beta, divided by the largest of a minibatch (section 3.4)."""
        batches = super().sample(num_batches, batch_size)
        priority = self._tree.get(self._places(*self._drawn)).reshape(num_batches, batch_size)
        weights = ((priority.min(1, keepdims=True) / priority) ** self.beta).astype(np.float32)
        tensors = to_device([torch.from_numpy(weights)], self._device)[0]
        return [batch._replace(weight=weight) for batch, weight in zip(batches, tensors, strict=True)]

    def _row_places(self, split: int, start: int, stop: int) -> IntArray:
        """Places of all environments in the rows from `start` to `stop`; none if there are no such rows."""
        row, env = np.arange(start, max(start, stop))[:, np.newaxis], np.arange(self._stripes.num_envs)
        places: IntArray = self._places(np.int64(split), row, env).reshape(-1)
        return places

    def _set(self, places: IntArray, priorities: npt.ArrayLike) -> None:
        self._priority[places] = priorities
        self._tree.set(places, self._priority[places])
