"""Running mean and variance, merged batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

_VARIANCE_EPS = 1e-5


class RunningMoments:
    """Mean and variance of every element of the vectors seen so far (Chan et al. 1979).

    Attributes:
        mean: [D] float64.
        variance: [D] float64, biased.
        count: number of vectors.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.ones(size, dtype=torch.float64, device=device)
        self.count = 0

    @property
    def std(self) -> Tensor:
        """[D] float64 deviation, kept away from 0 so that a constant element stays a small number."""
        return (self.variance + _VARIANCE_EPS).sqrt()

    def update(self, batch: Tensor) -> None:
        """Take in `batch: [N, D] float32`; one with a number that is not finite changes nothing."""
        batch_count = batch.shape[0]
        if batch_count == 0:
            return
        # Moments around the running mean, so that float32 sums lose nothing to a large offset.
        center = self.mean.to(batch.dtype) if self.count else batch[0]
        centered = batch - center
        offset = centered.mean(0)
        spread = centered.sub_(offset).square_().mean(0).double()
        shift = (center.double() + offset.double()) - self.mean
        if not bool(torch.isfinite(shift + spread).all()):
            return
        total = self.count + batch_count
        weight = batch_count / total
        if self.count == 0:
            self.variance.zero_()
        self.mean.add_(shift, alpha=weight)
        self.variance.lerp_(spread, weight).addcmul_(shift, shift, value=weight * (1.0 - weight))
        self.count = total
