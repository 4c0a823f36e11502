"""Allocates parameters and optimizer state: private ones here; others share them (`asyncrl.hogwild.storage`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.statistics import RunningMoments


class ParameterStore:
    """Private memory of one learner. Subclasses place values and optimizer state elsewhere.

    Attributes:
        is_shared: whether other processes change the values, too, at any time.
        ranks: learners with equal values, each in its own memory, that make the same steps.
    """

    is_shared = False
    ranks = Ranks()

    def __init__(self, ranks: Ranks | None = None) -> None:
        if ranks is not None:
            self.ranks = ranks

    @property
    def is_capturable(self) -> bool:
        """Whether an update can be captured in a CUDA graph: it waits for no other process."""
        return self.ranks.num_ranks == 1

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """The memory for a trained tensor `[N]` of this name; with private memory `initial` itself."""
        return initial

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """The optimizer of the tensors of these names; `parameters` come from `allocate`."""
        return FlatAdam(parameters, gradients, config)

    def sync(self) -> None:
        """Updates copies of shared tensors to their current values."""

    def polyak_update(self, tensor: Tensor, towards: Tensor, share: float) -> None:
        """Moves an allocated tensor towards another one by a share of their difference."""
        tensor.lerp_(towards, share)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Running moments of vectors `[size]`."""
        return RunningMoments(size, device, self.ranks)
