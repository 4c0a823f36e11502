"""Layers of perceptrons for hand-written passes, whose matrix products may have another dtype."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.models.stacked_mlp import StackedMlp


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products: auto is bfloat16 where the hardware has instructions for it; others are slower."""
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    # AVX512-BF16 and AMX. A version of PyTorch that cannot check for one of them does not use it.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    has_instructions = device.type == "cpu" and any(check() for check in checks if check is not None)
    return torch.bfloat16 if has_instructions else torch.float32


def perceptrons_of(*networks: nn.Module) -> list[StackedMlp] | None:
    """The networks, if hand-written passes know all of them."""
    perceptrons = [network for network in networks if isinstance(network, StackedMlp)]
    return perceptrons if len(perceptrons) == len(networks) else None


class LayerCopy:
    """Layers of a flat tensor `[N]` for matrix products.

    Attributes:
        layers: views of the tensor; hidden layers of a copy if the products have another dtype.
        hidden: the parts of tensor and copy that have the hidden layers; None without a copy.
    """

    def __init__(self, mlp: StackedMlp, flat: Tensor, dtype: torch.dtype) -> None:
        size = mlp.num_hidden_parameters
        copied = flat if flat.dtype == dtype else flat.to(dtype)
        self.layers = (*mlp.layers_in(copied)[:-1], mlp.layers_in(flat)[-1])
        self.hidden = None if copied is flat else (flat[:size], copied[:size])

    def refresh(self) -> None:
        """Updates the copy from the flat tensor."""
        if self.hidden is not None:
            flat, copied = self.hidden
            copied.copy_(flat)
