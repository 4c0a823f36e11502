"""Running mean and variance, merged batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.learner.ranks import Ranks

_VARIANCE_EPS = 1e-5


class RunningMoments:
    """Mean and variance of each element of the vectors of all ranks (Chan et al. 1979).

    Attributes:
        mean: [D] float64.
        variance: [D] float64, biased.
        count: number of vectors.
    """

    def __init__(self, size: int, device: torch.device, ranks: Ranks | None = None) -> None:
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.variance = torch.ones(size, dtype=torch.float64, device=device)
        self.count = 0
        self._ranks = ranks or Ranks()

    @property
    def std(self) -> Tensor:
        """[D] float64 deviation, at least 0.003, so that normalizing a constant element gives small numbers."""
        return (self.variance + _VARIANCE_EPS).sqrt()

    def update(self, batch: Tensor) -> None:
        """Adds the vectors `[N, D] float32` of all ranks; a batch that has NaN or infinity is ignored."""
        batch_count = batch.shape[0]
        shift = spread = torch.zeros_like(self.mean)
        if batch_count > 0:
            # Around the running mean, so that a large offset does not cost float32 sums their precision.
            center = self.mean.to(batch.dtype) if self.count else batch[0]
            centered = batch - center
            offset = centered.mean(0)
            spread = centered.sub_(offset).square_().mean(0).double()
            shift = (center.double() + offset.double()) - self.mean
            if not bool(torch.isfinite(shift + spread).all()):
                batch_count, shift, spread = 0, torch.zeros_like(shift), torch.zeros_like(spread)
        if self._ranks.num_ranks > 1:
            batch_count, shift, spread = self._of_all_ranks(batch_count, shift, spread)
        if batch_count == 0:
            return
        total = self.count + batch_count
        weight = batch_count / total
        if self.count == 0:
            self.variance.zero_()
        self.mean.add_(shift, alpha=weight)
        self.variance.lerp_(spread, weight).addcmul_(shift, shift, value=weight * (1.0 - weight))
        self.count = total

    def merge(self) -> None:
        """Adopts the moments of other processes, where they are shared."""

    def _of_all_ranks(self, count: int, shift: Tensor, spread: Tensor) -> tuple[int, Tensor, Tensor]:
        """Merges the moments of all ranks, in float64 and around the common mean."""
        sums = self._ranks.sum(torch.cat((shift * count, shift.new_full((1,), count))))
        total = int(sums[-1])
        mean = sums[:-1] / max(total, 1)
        merged = self._ranks.sum(count * (spread + (shift - mean).square())) / max(total, 1)
        return total, mean, merged
