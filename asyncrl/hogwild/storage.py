"""Where the numbers of a Hogwild learner live: `asyncrl.learner.storage` over memory that all processes share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import RUN, SharedMoments, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.hogwild.optimizers import SharedAdam, is_finite, make_shared_optimizer
from asyncrl.learner.adam import FlatAdam
from asyncrl.learner.statistics import RunningMoments
from asyncrl.learner.storage import Storage


class MergedMoments(RunningMoments):
    """Moments of what all processes have seen. Each writes only its own part, so nothing is lost or counted twice.

    `mean`, `variance` and `count` are those of all, as of the last `update` or `merge`.
    """

    def __init__(self, shared: SharedMoments, owner: int) -> None:
        """Takes the shared entries; `owner` is this process's own."""
        super().__init__(shared.size, torch.device("cpu"))
        self._shared = shared
        self._owner = owner
        self._own = RunningMoments(shared.size, torch.device("cpu"))
        entry = shared.read(owner)
        if entry is not None and entry[0] > 0:  # of a process before this one
            self._own.count = int(entry[0])
            self._own.mean.copy_(torch.from_numpy(entry[1 : 1 + shared.size]))
            self._own.variance.copy_(torch.from_numpy(entry[1 + shared.size :]))
        self.merge()

    def update(self, batch: Tensor) -> None:
        """Takes in `batch: [N, D] float32`, and what others have taken in.

        Raises:
            FloatingPointError: the batch is not finite; the common moments are as they were.
        """
        if not is_finite(batch):
            raise FloatingPointError("an observation or a return is not finite: look at the environment's")
        self._own.update(batch)
        self._shared.write(self._owner, self._own.count, self._own.mean.numpy(), self._own.variance.numpy())
        self.merge()

    def merge(self) -> None:
        """Takes over what others have taken in (Chan et al. 1979); nothing while one of them is writing."""
        table = self._shared.read_all()
        if table is None:
            return
        size, counts = self._shared.size, table[:, :1]
        total = counts.sum()
        if total == 0:
            return
        means, variances = table[:, 1 : 1 + size], table[:, 1 + size :]
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + np.square(means - mean))).sum(0) / total
        self.mean.copy_(torch.from_numpy(mean))
        self.variance.copy_(torch.from_numpy(variance))
        self.count = int(total)


class SharedStorage(Storage):
    """Values and optimizer in shared memory; with `is_private` a copy of the values that is pulled now and then."""

    def __init__(self, arena: Arena, owner: int, is_private: bool = False) -> None:
        """Takes the arena.

        Args:
            arena: shared by all processes, its tensors initialized.
            owner: number of this process among those that train.
            is_private: act and differentiate with a copy of the values.
        """
        self.is_shared = not is_private
        self._arena = arena
        self._owner = owner
        self._is_private = is_private
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._optimizers: list[SharedAdam] = []
        self._moments: list[MergedMoments] = []

    def hold(self, name: str, initial: Tensor) -> Tensor:
        """The shared values, or a copy of them; `initial` is not used."""
        value = torch.from_numpy(SharedTensor(self._arena, name).value)
        if not self._is_private:
            return value
        copy = value.clone()
        self._copies.append((copy, value))
        return copy

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """What steps the shared values."""
        shared = [SharedTensor(self._arena, name) for name in names]
        self._optimizers.append(make_shared_optimizer(shared, gradients, config, self._owner))
        return self._optimizers[-1]

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Moments of what all processes have seen."""
        self._moments.append(MergedMoments(SharedMoments(self._arena, name), self._owner))
        return self._moments[-1]

    def pull(self) -> None:
        """Copies the shared values."""
        for copy, value in self._copies:
            copy.copy_(value)

    def refresh(self) -> None:
        """Brings counts of steps, and moments, to what all processes have done."""
        for optimizer in self._optimizers:
            optimizer.refresh()
        for moments in self._moments:
            moments.merge()


class InitialStorage(Storage):
    """Puts a new learner's numbers, or those of a checkpoint, into shared memory before any process starts."""

    def __init__(self, arena: Arena) -> None:
        """Takes the arena, nobody else in it."""
        self._arena = arena
        self._optimizers: list[tuple[FlatAdam, list[SharedTensor]]] = []
        self._moments: list[tuple[SharedMoments, RunningMoments]] = []

    def hold(self, name: str, initial: Tensor) -> Tensor:
        """The shared values, which become `initial`."""
        return torch.from_numpy(SharedTensor(self._arena, name).value).copy_(initial)

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """The optimizer over the shared state."""
        shared = [SharedTensor(self._arena, name) for name in names]
        moments = [torch.from_numpy(s.first) for s in shared], [torch.from_numpy(s.second) for s in shared]
        optimizer = FlatAdam(parameters, gradients, config, moments)
        self._optimizers.append((optimizer, shared))
        return optimizer

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Moments that `finish` hands over."""
        self._moments.append((SharedMoments(self._arena, name), RunningMoments(size, device)))
        return self._moments[-1][1]

    def finish(self) -> None:
        """Hands counts and moments over, once the learner has loaded what it goes on from."""
        for optimizer, shared in self._optimizers:
            for steps, tensor in zip(optimizer.steps, shared, strict=True):
                tensor.steps[RUN] = int(steps)
        for entries, moments in self._moments:
            entries.write(RUN, moments.count, moments.mean.numpy(), moments.variance.numpy())
