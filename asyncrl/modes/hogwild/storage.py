"""Memory of Hogwild learners: parameters and optimizer state that all processes share, and gradients that are sent.

Gradients are always private. The bias correction of a shared optimizer follows the number of steps of all processes.
Python has no atomic addition across processes, so each process counts its steps in a separate word, and the number is
the sum of the words.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import RUN, SharedMoments, SharedTensor
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam, ParameterStore, RunningMoments
from asyncrl.modes.hogwild.staleness import StalenessMeter

_RMSPROP_ALPHA = 0.99


class SharedAdam(FlatAdam):
    """Adam on shared tensors: the fused kernel of `FlatAdam`, without a lock.

    Attributes:
        steps: float32 scalars, steps of all processes at the last `step` or `refresh`.
    """

    def __init__(
        self,
        shared: Sequence[SharedTensor],
        gradients: Sequence[Tensor],
        config: TrainConfig,
        owner: int,
        meter: StalenessMeter | None = None,
    ) -> None:
        """Takes tensors whose state was made before any process started.

        Args:
            shared: tensors to step.
            gradients: private, one for each.
            config: Adam's settings.
            owner: number of this process among those that step.
            meter: admits each step, where staleness is measured.
        """
        moments = [torch.from_numpy(s.first) for s in shared], [torch.from_numpy(s.second) for s in shared]
        super().__init__([torch.from_numpy(s.value) for s in shared], gradients, config, moments)
        self._shared = list(shared)
        self._owner = owner
        self._meter = meter
        self.refresh()

    def refresh(self) -> None:
        """Sets `steps` to the steps of all processes."""
        for tensor, steps in zip(self._shared, self.steps, strict=True):
            steps.fill_(tensor.num_steps)

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Takes one step; other processes may step at the same time, unless there is a bound of staleness."""
        if found_inf:
            return
        if self._meter is not None:
            self._meter.admit()
        self.refresh()
        for tensor in self._shared:
            tensor.steps[self._owner] += 1
        self._update(learning_rate, found_inf)

    def _update(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        super().step(learning_rate, found_inf)


class SharedRMSprop(SharedAdam):
    """RMSProp with shared statistics (Mnih et al. 2016, arXiv:1602.01783, equations 8 and 9)."""

    def _update(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        eps = self._config.adam_eps
        for value, square, gradient in zip(self.parameters, self.exp_avg_sqs, self._gradients, strict=True):
            square.mul_(_RMSPROP_ALPHA).addcmul_(gradient, gradient, value=1.0 - _RMSPROP_ALPHA)
            value.addcdiv_(gradient, (square + eps).sqrt_(), value=-float(learning_rate))
        for steps in self.steps:
            steps.add_(1.0)


def make_shared_optimizer(
    shared: Sequence[SharedTensor],
    gradients: Sequence[Tensor],
    config: TrainConfig,
    owner: int,
    meter: StalenessMeter | None = None,
) -> SharedAdam:
    kind = SharedRMSprop if config.hogwild_optimizer == "rmsprop" else SharedAdam
    return kind(shared, gradients, config, owner, meter)


class CopyOptimizer(FlatAdam):
    """Steps shared tensors along the gradients of copies of them, which may be on another device."""

    def __init__(
        self,
        shared: SharedAdam,
        fetched: Sequence[Tensor],
        gradients: Sequence[Tensor],
        config: TrainConfig,
        following: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        """Wraps `shared`.

        Args:
            shared: steps the shared tensors along `fetched`.
            fetched: copies of the gradients, on the device of the shared tensors.
            gradients: of the copies.
            config: the settings of `shared`.
            following: (copy, shared tensor) of each copy to bring up to date after a step.
        """
        super().__init__(shared.parameters, gradients, config, (shared.exp_avgs, shared.exp_avg_sqs))
        self.steps = shared.steps
        self._shared = shared
        self._fetched = fetched
        self._following = following

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        for fetched, gradient in zip(self._fetched, self._gradients, strict=True):
            fetched.copy_(gradient)
        self._shared.step(float(learning_rate), found_inf.to("cpu"))
        for copy, value in self._following:
            copy.copy_(value)


class GradientSender(FlatAdam):
    """Takes the place of a worker's optimizer: its step sends gradients to the parameter server, as one vector."""

    def __init__(
        self,
        gradients: Sequence[Tensor],
        config: TrainConfig,
        places: GradientPlaces,
        worker_idx: int,
        combiner: Waker,
        meter: StalenessMeter | None = None,
    ) -> None:
        """Takes the worker's gradients, each `[N]`; `combiner` wakes the parameter server."""
        super().__init__([], [], config)
        self._to_send = gradients
        self._places = places
        self._worker_idx = worker_idx
        self._combiner = combiner
        self._meter = meter
        self._number = places.last_number(worker_idx)  # a restarted worker's gradients are not taken before others'

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Sends the gradients, if all are finite.

        Raises:
            RuntimeError: there is no free place; the worker checks this before it collects.
        """
        if found_inf:
            return
        place = self._places.free_place(self._worker_idx)
        if place is None:
            raise RuntimeError(f"worker {self._worker_idx} has no free place for its gradient")
        if self._meter is not None:
            self._meter.admit()
        self._number += 1
        self._places.write(place, torch.cat([each.cpu() for each in self._to_send]).numpy(), self._number)
        self._combiner.wake()


class MergedMoments(RunningMoments):
    """Running moments over the data of all processes. Each writes one entry, so no data is lost or counted twice.

    `mean`, `variance` and `count` are those of all processes at the last `merge`.
    """

    def __init__(self, shared: SharedMoments, owner: int) -> None:
        """Continues the entry of `owner`, this process, if a predecessor has written it."""
        super().__init__(shared.size, torch.device("cpu"))
        self._shared = shared
        self._owner = owner
        self._entries = shared.new_entries()
        self.merge()
        entry = self._entries[owner]
        self._own = RunningMoments(shared.size, torch.device("cpu"))
        if entry[0] > 0:
            self._own.count = int(entry[0])
            self._own.mean.copy_(torch.from_numpy(entry[1 : 1 + shared.size]))
            self._own.variance.copy_(torch.from_numpy(entry[1 + shared.size :]))

    def update(self, batch: Tensor) -> None:
        """Adds `batch: [N, D] float32`, on any device, if all its numbers are finite."""
        self._own.update(batch.cpu())
        self._shared.write(self._owner, self._own.count, self._own.mean.numpy(), self._own.variance.numpy())

    def merge(self) -> None:
        """Merges the entries of all processes (Chan et al. 1979); one that is being written keeps its last value."""
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
    """Which tensors a learner acts and differentiates with, when the parameters are shared."""

    NONE = enum.auto()
    """The shared tensors."""
    PULLED = enum.auto()
    """Copies that change with `pull` only."""
    FOLLOWING = enum.auto()
    """Copies on another device, which also follow each step of the learner."""


class SharedStorage(ParameterStore):
    """Parameters and optimizer state in shared memory of the CPU; copies of the parameters may be on another device."""

    is_capturable = False  # a step changes counts in shared memory

    def __init__(
        self, arena: Arena, owner: int, copies: Copies = Copies.NONE, meter: StalenessMeter | None = None
    ) -> None:
        """Uses the initialized tensors of `arena`; `owner` is the number of this process among those that train.

        `meter` measures the staleness of a worker's updates.
        """
        self.is_shared = copies is not Copies.PULLED
        self._arena = arena
        self._owner = owner
        self._copies = copies
        self.meter = meter
        self._values: dict[int, tuple[Tensor, Tensor]] = {}  # (copy, shared tensor) by the copy's address
        self._optimizers: list[SharedAdam] = []
        self._moments: list[MergedMoments] = []

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """Returns the shared tensor, or a copy of it on the device of `initial`, whose values are not used."""
        value = torch.from_numpy(SharedTensor(self._arena, name).value)
        if self._copies is Copies.NONE:
            return value
        copy = value.to(initial.device, copy=True)
        self._values[copy.data_ptr()] = copy, value
        return copy

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        shared = [SharedTensor(self._arena, name) for name in names]
        if self._copies is Copies.NONE:
            self._optimizers.append(make_shared_optimizer(shared, gradients, config, self._owner, self.meter))
            return self._optimizers[-1]
        fetched = [torch.zeros(gradient.shape) for gradient in gradients]
        self._optimizers.append(make_shared_optimizer(shared, fetched, config, self._owner, self.meter))
        is_following = self._copies is Copies.FOLLOWING
        following = [self._values[copy.data_ptr()] for copy in parameters] if is_following else []
        return CopyOptimizer(self._optimizers[-1], fetched, gradients, config, following)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Returns moments over the data of all processes, on the CPU."""
        self._moments.append(MergedMoments(SharedMoments(self._arena, name), self._owner))
        return self._moments[-1]

    def sync(self) -> None:
        with contextlib.nullcontext() if self.meter is None else self.meter.pulling():
            for copy, value in self._values.values():
                copy.copy_(value)

    def polyak_update(self, tensor: Tensor, towards: Tensor, share: float) -> None:
        """Moves the shared tensor, and then its copy."""
        if self._copies is Copies.NONE:
            super().polyak_update(tensor, towards, share)
            return
        copy, value = self._values[tensor.data_ptr()]
        super().polyak_update(value, self._values[towards.data_ptr()][1], share)
        copy.copy_(value)

    def refresh(self) -> None:
        """Brings counts of steps, and moments, up to date with all processes."""
        for optimizer in self._optimizers:
            optimizer.refresh()
        for moments in self._moments:
            moments.merge()


class SendingStorage(ParameterStore):
    """A worker's private parameters, whose gradients the parameter server steps along."""

    is_capturable = False  # a step sends a gradient

    def __init__(self, shared: SharedStorage, places: GradientPlaces, worker_idx: int, combiner: Waker) -> None:
        """Takes the storage of the common moments, and the arguments of `GradientSender`."""
        self._shared = shared
        self._places = places
        self._worker_idx = worker_idx
        self._combiner = combiner

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        meter = self._shared.meter
        return GradientSender(gradients, config, self._places, self._worker_idx, self._combiner, meter)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        return self._shared.moments(name, size, device)


class InitialStorage(ParameterStore):
    """Writes a new learner, or the learner of a checkpoint, into shared memory before any process starts."""

    is_capturable = False  # it trains nothing

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._optimizers: list[tuple[FlatAdam, list[SharedTensor]]] = []
        self._moments: list[tuple[SharedMoments, RunningMoments]] = []

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """Returns the shared tensor, filled with `initial`."""
        return torch.from_numpy(SharedTensor(self._arena, name).value).copy_(initial)

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """Returns an optimizer whose state is shared."""
        shared = [SharedTensor(self._arena, name) for name in names]
        moments = [torch.from_numpy(s.first) for s in shared], [torch.from_numpy(s.second) for s in shared]
        optimizer = FlatAdam(parameters, gradients, config, moments)
        self._optimizers.append((optimizer, shared))
        return optimizer

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Returns moments that `finish` copies to shared memory."""
        self._moments.append((SharedMoments(self._arena, name), RunningMoments(size, device)))
        return self._moments[-1][1]

    def finish(self) -> None:
        """Writes counts and moments, after the learner has loaded its checkpoint."""
        for optimizer, shared in self._optimizers:
            for steps, tensor in zip(optimizer.steps, shared, strict=True):
                tensor.steps[RUN] = int(steps)
        for entries, moments in self._moments:
            entries.write(RUN, moments.count, moments.mean.numpy(), moments.variance.numpy())
