"""Where a worker's gradients go when another process steps along them, and how that process combines them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam
from asyncrl.learner.parameter_store import ParameterStore
from asyncrl.learner.statistics import RunningMoments


def combine(gradients: npt.NDArray[np.float32], how: str) -> Tensor:
    """The mean or the sum of gradients `[K, N]`, as `[N]` float32, added in float64."""
    total = gradients.sum(0, dtype=np.float64)
    if how == "mean":
        total /= len(gradients)
    return torch.from_numpy(total.astype(np.float32))


class GradientSender(FlatAdam):
    """Stands where a worker's optimizer would: its step sends the gradient away."""

    def __init__(
        self, gradient: Tensor, config: TrainConfig, places: GradientPlaces, worker_idx: int, combiner: Waker
    ) -> None:
        """Takes the worker's gradient `[N]`; `combiner` wakes who combines."""
        super().__init__([], [], config)
        self._gradient = gradient
        self._places = places
        self._worker_idx = worker_idx
        self._combiner = combiner
        self._number = places.last_number(worker_idx)  # its turn does not come earlier because it was started again

    def step(self, learning_rate: float | Tensor, found_inf: Tensor) -> None:
        """Sends the gradient, if it is finite.

        Raises:
            RuntimeError: there is no free place, which the worker looks for before it collects.
        """
        if found_inf:
            return
        place = self._places.free_place(self._worker_idx)
        if place is None:
            raise RuntimeError(f"worker {self._worker_idx} has no free place for its gradient")
        self._number += 1
        self._places.write(place, self._gradient.cpu().numpy(), self._number)
        self._combiner.wake()


class SendingStorage(ParameterStore):
    """A worker's own weights, whose gradients another process steps along."""

    is_capturable = False  # a step sends gradients

    def __init__(self, moments: ParameterStore, places: GradientPlaces, worker_idx: int, combiner: Waker) -> None:
        """Takes the storage that gives moments, and what a `GradientSender` needs."""
        self._shared = moments
        self._places = places
        self._worker_idx = worker_idx
        self._combiner = combiner

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """What sends the gradient of the one tensor that there is."""
        (gradient,) = gradients
        return GradientSender(gradient, config, self._places, self._worker_idx, self._combiner)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Moments of what all processes have seen."""
        return self._shared.moments(name, size, device)
