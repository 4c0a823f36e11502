"""Layers that need more than the step of the gradient."""

from __future__ import annotations

import abc

from torch import Tensor, nn


class SteppedLayer(nn.Module, abc.ABC):
    """A layer that changes its parameters after each step of the optimizer.

    Attributes:
        batch_moments: statistics of the last batch, whose means over ranks `after_step` reads.
    """

    batch_moments: tuple[Tensor, ...] = ()

    @property
    def statistics(self) -> tuple[nn.Parameter, ...]:
        """The parameters that no gradient reaches, and no weight decay."""
        return ()

    @abc.abstractmethod
    def after_step(self, is_skipped: Tensor) -> None:
        """Called after each step; `is_skipped` is a bool scalar."""
