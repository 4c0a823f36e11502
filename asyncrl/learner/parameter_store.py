"""Where a learner's numbers live, and who else has a part in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.statistics import RunningMoments


class ParameterStore:
    """A learner's own memory. Others override where values and the optimizer's state are.

    Attributes:
        is_shared: whether others change the values, too, at any time.
        ranks: the learners that hold the same values, each in its own memory, and make the same steps.
    """

    is_shared = False
    ranks = Ranks()

    def __init__(self, ranks: Ranks | None = None) -> None:
        """Takes the learners that train together; this one alone if not given."""
        if ranks is not None:
            self.ranks = ranks

    @property
    def is_capturable(self) -> bool:
        """Whether an update is operations on its device alone, which can be compiled or captured: exchanges between
        ranks wait for others.
        """
        return self.ranks.num_ranks == 1

    def allocate(self, name: str, initial: Tensor) -> Tensor:
        """Returns the tensor that a network's weights, or another trained tensor, is to live in.

        Args:
            name: which one it is.
            initial: [N], its values at the start; it may be returned itself.
        """
        return initial

    def optimizer(
        self, names: Sequence[str], parameters: Sequence[Tensor], gradients: Sequence[Tensor], config: TrainConfig
    ) -> FlatAdam:
        """Returns what steps the tensors of these names; `parameters` are those that `hold` gave."""
        return FlatAdam(parameters, gradients, config)

    def sync(self) -> None:
        """Brings the tensors that `hold` gave to what has become of them elsewhere; nothing in memory of one's own."""

    def polyak_update(self, tensor: Tensor, towards: Tensor, share: float) -> None:
        """Moves a tensor that `hold` gave towards another one, by a share of what lies between them."""
        tensor.lerp_(towards, share)

    def moments(self, name: str, size: int, device: torch.device) -> RunningMoments:
        """Returns running moments of vectors of that size."""
        return RunningMoments(size, device, self.ranks)
