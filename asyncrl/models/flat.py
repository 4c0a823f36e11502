"""A module's parameters as one flat tensor, and the block in which weights and statistics travel together.

One tensor means one copy to publish, one call of the optimizer and one norm of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn


class PublishedModel(Protocol):
    """A model whose weights and statistics travel to the roles that act.

    Attributes:
        statistics: [S] float32, never trained.
    """

    statistics: Tensor

    def parameters(self) -> Iterator[nn.Parameter]:
        """All that is trained."""


class FlatParameters:
    """Moves a module's parameters into one tensor; the module's own parameters become views of it.

    Move the module to its device first: a later `.to(device)` would take the parameters out again.

    Attributes:
        size: number of parameters N.
        data: [N] float32, all parameters in the order of `named_parameters`.
        grad: [N] float32, their gradients; None without `with_grad`.
    """

    def __init__(
        self, module: nn.Module, with_grad: bool = True, hold: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Makes the module's parameters flat.

        Args:
            module: on its device already.
            with_grad: whether it is trained.
            hold: from their values [N] at the start to the tensor that they are to live in, which may hold others.
        """
        parameters = list(module.parameters())
        initial = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.data = initial if hold is None else hold(initial)
        self.size = self.data.numel()
        self.grad = torch.zeros_like(self.data) if with_grad else None
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.data[start:stop].view(parameter.shape)
            parameter.requires_grad_(with_grad)
            parameter.grad = None if self.grad is None else self.grad[start:stop].view(parameter.shape)
            start = stop

    def require_grad(self) -> Tensor:
        """The gradients [N] of a module that is trained.

        Raises:
            RuntimeError: it was flattened without gradients.
        """
        if self.grad is None:
            raise RuntimeError("these parameters were made flat with with_grad=False and cannot be trained")
        return self.grad

    def zero_grad(self) -> None:
        """Set the gradients to zero in place: dropping them would take them out of the flat tensor."""
        if self.grad is not None:
            self.grad.zero_()


def block_size(model: PublishedModel) -> int:
    """Elements of the block that carries one version of `model`: parameters, then statistics."""
    return sum(parameter.numel() for parameter in model.parameters()) + model.statistics.numel()


def write_block(model: PublishedModel, flat: FlatParameters, out: Tensor) -> None:
    """Write parameters and statistics into `out: [N + S] float32`.

    Args:
        model: the model that `flat` belongs to.
        flat: its parameters.
        out: the block, on any device.
    """
    if out.shape != (flat.size + model.statistics.numel(),):
        raise _mismatch(model, flat, out)
    out[: flat.size].copy_(flat.data)
    out[flat.size :].copy_(model.statistics)


def read_block(model: PublishedModel, flat: FlatParameters, block: Tensor) -> None:
    """Take parameters and statistics from `block: [N + S] float32`, in place."""
    if block.shape != (flat.size + model.statistics.numel(),):
        raise _mismatch(model, flat, block)
    flat.data.copy_(block[: flat.size])
    model.statistics.copy_(block[flat.size :])


def _mismatch(model: PublishedModel, flat: FlatParameters, block: Tensor) -> ValueError:
    expected = flat.size + model.statistics.numel()
    return ValueError(f"a block of this model has {expected} elements, got shape {tuple(block.shape)}")
