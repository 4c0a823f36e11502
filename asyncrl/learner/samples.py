"""What a training iteration makes of a dataset: samples, ready for the losses."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import Mean
from asyncrl.models.encoders import Inputs


class Samples(NamedTuple):
    """Rows of a dataset, as the losses take them, or sequences of rows for a policy with memory.

    Each field is `[N, ...]`, its rows samples without exception; or `[N, L, ...]`, sequences of L rows not all of which
    are samples, with the states before them, `[N, S]`.

    `share` is what each row counts in a mean, `[N]` float32 of sum 1; without it all count the same.
    """

    floats: Tensor
    action: Tensor
    action_parameters: Tensor
    log_prob: Tensor
    advantage: Tensor
    normalized_return: Tensor
    normalized_value: Tensor
    weight: Tensor | None = None
    pixels: Tensor | None = None
    rnn_state: Tensor | None = None
    begins: Tensor | None = None
    valid: Tensor | None = None
    share: Tensor | None = None

    @property
    def inputs(self) -> Inputs:
        """What the networks see."""
        return Inputs(self.floats, self.pixels)

    def at(self, indices: Tensor) -> Samples:
        """Some of them, `indices [K]` along the first dimension."""
        return self._replace(**{name: field.index_select(0, indices) for name, field in self.present()})

    def minibatches(self, num_batches: int) -> Iterator[Samples]:
        """Parts of nearly equal size; some are empty if there are too few samples."""
        names, fields = zip(*self.present(), strict=True)
        for parts in zip(*(field.tensor_split(num_batches) for field in fields), strict=True):
            yield self._replace(**dict(zip(names, parts, strict=True)))

    def filled_up(self, size: int) -> Samples:
        """The same samples in a minibatch of `size` rows, of which those that repeat others have no share."""
        num_samples = len(self.log_prob)
        rows = torch.arange(size, device=self.log_prob.device)
        share = (rows < num_samples).float() / num_samples
        return self.at(rows % num_samples)._replace(share=share)

    @property
    def mean(self) -> Mean:
        """Over the samples of a minibatch."""
        return torch.mean if self.share is None else functools.partial(torch.dot, self.share)

    def present(self) -> list[tuple[str, Tensor]]:
        """The fields that there are."""
        return [(name, field) for name, field in zip(self._fields, self, strict=True) if field is not None]
