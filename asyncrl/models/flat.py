"""A module's parameters as one flat tensor, and the block in which weights and statistics are published.

With one tensor, publishing is one copy, an optimizer step is one call, and the gradient has one norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn


class PublishedModel(Protocol):
    """A model whose weights and statistics are published to the roles that act.

    Attributes:
        statistics: [S] float32, never trained.
    """

    statistics: Tensor

    def parameters(self) -> Iterator[nn.Parameter]: ...


class FlatParameters:
    """Moves a module's parameters into one tensor; the module's parameters become views of it.

    The module must be on its device before: a later `.to(device)` would separate the parameters again.

    Args:
        module: on its device.
        with_grad: whether it is trained.
        hold: returns the tensor that stores the parameters, from their initial values [N].

    Attributes:
        size: number of parameters N.
        data: [N] float32, all parameters in the order of `named_parameters`.
        grad: [N] float32, their gradients; None without `with_grad`.
    """

    def __init__(
        self, module: nn.Module, with_grad: bool = True, hold: Callable[[Tensor], Tensor] | None = None
    ) -> None:
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
        """The gradients [N].

        Raises:
            RuntimeError: the parameters were flattened without gradients.
        """
        if self.grad is None:
            raise RuntimeError("these parameters were made flat with with_grad=False and cannot be trained")
        return self.grad

    def zero_grad(self) -> None:
        """Sets the gradients to zero in place, so they stay in the flat tensor."""
        if self.grad is not None:
            self.grad.zero_()


def block_size(model: PublishedModel) -> int:
    """Elements of the block for one version of `model`: parameters, then statistics."""
    return sum(parameter.numel() for parameter in model.parameters()) + model.statistics.numel()


def write_block(model: PublishedModel, flat: FlatParameters, out: Tensor) -> None:
    """Writes parameters and statistics to `out: [N + S] float32`, on any device; `flat` holds `model`'s parameters."""
    if out.shape != (flat.size + model.statistics.numel(),):
        raise _wrong_size(model, flat, out)
    out[: flat.size].copy_(flat.data)
    out[flat.size :].copy_(model.statistics)


def read_block(model: PublishedModel, flat: FlatParameters, block: Tensor) -> None:
    """Copies parameters and statistics from `block: [N + S] float32`, in place."""
    if block.shape != (flat.size + model.statistics.numel(),):
        raise _wrong_size(model, flat, block)
    flat.data.copy_(block[: flat.size])
    model.statistics.copy_(block[flat.size :])


def _wrong_size(model: PublishedModel, flat: FlatParameters, block: Tensor) -> ValueError:
    expected = flat.size + model.statistics.numel()
    return ValueError(f"a block of this model has {expected} elements, got shape {tuple(block.shape)}")
