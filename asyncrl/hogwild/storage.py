"""Where the numbers of a Hogwild learner live: `ParameterStore` over memory that all processes share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import RUN, SharedMoments, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.hogwild.optimizers import SharedAdam, make_shared_optimizer
from asyncrl.learner.optimizer import FlatAdam
from asyncrl.learner.parameter_store import ParameterStore
from asyncrl.learner.statistics import RunningMoments


class MergedMoments(RunningMoments):
    """Moments of what all processes have seen. Each writes only its own part, so nothing is lost or counted twice.

    `mean`, `variance` and `count` are those of all, as of the last `merge`.
    """

    def __init__(self, shared: SharedMoments, owner: int) -> None:
        """Takes the shared entries; `owner` is this process's own."""
        super().__init__(shared.size, torch.device("cpu"))
        self._shared = shared
        self._owner = owner
        self._entries = shared.new_entries()
        self._own = RunningMoments(shared.size, torch.device("cpu"))
        entry = shared.read(owner)
        if entry is not None and entry[0] > 0:  # of a process before this one
            self._own.count = int(entry[0])
            self._own.mean.copy_(torch.from_numpy(entry[1 : 1 + shared.size]))
            self._own.variance.copy_(torch.from_numpy(entry[1 + shared.size :]))
        self.merge()

    def update(self, batch: Tensor) -> None:
        """Takes in `batch: [N, D] float32`, on any device, unless one of its numbers is not finite."""
        batch = batch.cpu()
        self._own.update(batch)
        self._shared.write(self._owner, self._own.count, self._own.mean.numpy(), self._own.variance.numpy())

    def merge(self) -> None:
        """Takes over what all have taken in (Chan et al. 1979); of one who is writing, what was last read."""
        self._shared.read_all(self._entries)
        table, size = self._entries, self._shared.size
        counts = table[:, 0]
        total = counts.sum()
        if total == 0:
            return
        shares, means, variances = counts / total, table[:, 1 : 1 + size], table[:, 1 + size :]
        mean = np.matmul(shares, means, out=self.mean.numpy())
        shifts = means - mean
        np.matmul(shares, variances + shifts * shifts, out=self.variance.numpy())
        self.count = int(total)


class Copies(enum.Enum):
    """What a learner acts and differentiates with, where the values themselves are shared."""

    NONE = enum.auto()
    """The shared values."""
    PULLED = enum.auto()
    """A copy of them that changes with `pull` only."""
    FOLLOWING = enum.auto()
    """A copy of them that also follows each step of its own: for what is on another device than they are."""


class CopyOptimizer(FlatAdam):
    """Steps shared tensors along the gradients of copies of them, wherever those are."""

    def __init__(
        self,
        shared: SharedAdam,
        fetched: Sequence[Tensor],
        gradients: Sequence[Tensor],
        config: TrainConfig,
        after_step: Callable[[], None],
    ) -> None:
        """Takes what steps the shared tensors.

        Args:
            shared: steps them along `fetched`.
            fetched: room for the gradients beside the shared tensors.
            gradients: of the copies.
            config: the settings of `shared`.
            after_step: called when the shared tensors were stepped.
        """
        super().__init__(shared.parameters, gradients, config, (shared.exp_avgs, shared.exp_avg_sqs))
        self.steps = shared.steps
        self._shared = shared
        self._fetched = fetched
        self._after_step = after_step

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Takes one step; see `SharedAdam.step`."""
        for fetched, gradient in zip(self._fetched, self._gradients, strict=True):
            fetched.copy_(gradient)
        self._shared.step(float(learning_rate), found_inf.to("cpu"))
        self._after_step()


class SharedStorage(ParameterStore):
    """Values and optimizer in shared memory, which is the CPU's; `copies` of the values may be on another device."""

    is_capturable = False  # a step changes counts in shared memory, too

    def __init__(self, arena: Arena, owner: int, copies: Copies = Copies.NONE) -> None:
        """Takes the arena.

        Args:
            arena: shared by all processes, its tensors initialized.
            owner: number of this process among those that train.
            copies: what to act and differentiate with.
        """
        self.is_shared = copies is not Copies.PULLED
        self._arena = arena
        self._owner = owner
        self._copies = copies
        self._values: dict[int, tuple[Tensor, Tensor]] = {}  # copies and what they are of, by the copies' addresses
        self._optimizers: list[SharedAdam] = []
        self._moments: list[MergedMoments] = []

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """The shared values, or a copy of them on the device of `initial`, whose own values are not used."""
        value = torch.from_numpy(SharedTensor(self._arena, name).value)
        if self._copies is Copies.NONE:
            return value
        copy = value.to(initial.device, copy=True)
        self._values[copy.data_ptr()] = copy, value
        return copy

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """What steps the shared values."""
        shared = [SharedTensor(self._arena, name) for name in names]
        are_here = self._copies is Copies.NONE
        own = gradients if are_here else [torch.zeros(gradient.shape) for gradient in gradients]
        self._optimizers.append(make_shared_optimizer(shared, own, config, self._owner))
        if are_here:
            return self._optimizers[-1]

        def follow() -> None:
            if self._copies is Copies.FOLLOWING:
                self._pull_some(parameters)

        return CopyOptimizer(self._optimizers[-1], own, gradients, config, follow)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Moments of what all processes have seen, on the CPU."""
        self._moments.append(MergedMoments(SharedMoments(self._arena, name), self._owner))
        return self._moments[-1]

    def sync(self) -> None:
        """Copies the shared values."""
        for copy, value in self._values.values():
            copy.copy_(value)

    def polyak_update(self, tensor: Tensor, towards: Tensor, share: float) -> None:
        """Moves the shared values, and then the copy."""
        if self._copies is Copies.NONE:
            super().polyak_update(tensor, towards, share)
            return
        super().polyak_update(self._values[tensor.data_ptr()][1], self._values[towards.data_ptr()][1], share)
        self._pull_some([tensor])

    def refresh(self) -> None:
        """Brings counts of steps, and moments, to what all processes have done."""
        for optimizer in self._optimizers:
            optimizer.refresh()
        for moments in self._moments:
            moments.merge()

    def _pull_some(self, copies: Sequence[Tensor]) -> None:
        for copy in copies:
            copy.copy_(self._values[copy.data_ptr()][1])


class InitialStorage(ParameterStore):
    """Puts a new learner's numbers, or those of a checkpoint, into shared memory before any process starts."""

    is_capturable = False  # nothing is trained here

    def __init__(self, arena: Arena) -> None:
        """Takes the arena, nobody else in it."""
        self._arena = arena
        self._optimizers: list[tuple[FlatAdam, list[SharedTensor]]] = []
        self._moments: list[tuple[SharedMoments, RunningMoments]] = []

    def allocate(self, name: str, initial: Tensor) -> Tensor:
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
