"""A module's parameters as one flat tensor, and the block in which weights and statistics are published.

With one tensor, publishing is one copy, an optimizer step is one call, and the gradient has one norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from asyncrl.models.factory import ActingModel


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
        grad: [N] float32, their gradients; [0] without `with_grad`.
    """

    def __init__(
        self, module: nn.Module, with_grad: bool = True, hold: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        parameters = list(module.parameters())
        initial = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.data = initial if hold is None else hold(initial)
        self.size = self.data.numel()
        self.grad = torch.zeros_like(self.data) if with_grad else self.data.new_empty(0)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.data[start:stop].view(parameter.shape)
            parameter.requires_grad_(with_grad and parameter.requires_grad)  # a user's network may have frozen ones
            parameter.grad = self.grad[start:stop].view(parameter.shape) if with_grad else None
            start = stop


def block_size(model: ActingModel) -> int:
    """Elements of the block for one version of `model`: parameters, then statistics."""
    return sum(parameter.numel() for parameter in model.parameters()) + model.statistics.numel()


def write_block(model: ActingModel, flat: FlatParameters, out: Tensor | None = None) -> Tensor:
    """Writes parameters and statistics to `out: [N + S] float32`, on any device, and returns it.

    `flat` holds `model`'s parameters. Without `out` the block is a new tensor on the CPU.
    """
    if out is None:
        out = torch.empty(flat.size + model.statistics.numel())
    out[: flat.size].copy_(flat.data)
    out[flat.size :].copy_(model.statistics)
    return out


def read_block(model: ActingModel, flat: FlatParameters, block: Tensor) -> None:
    """Copies parameters and statistics from `block: [N + S] float32`, in place."""
    size = flat.size + model.statistics.numel()
    if block.shape != (size,):
        raise ValueError(f"a block of this model has {size} elements, got shape {tuple(block.shape)}")
    flat.data.copy_(block[: flat.size])
    model.statistics.copy_(block[flat.size :])
