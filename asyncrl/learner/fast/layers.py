"""Layers of perceptrons for hand-written passes, whose matrix products may have another dtype."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from asyncrl.models.products import is_amd
from asyncrl.models.stacked_mlp import StackedMlp


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products: auto is bfloat16 where the hardware multiplies it faster than float32.

    AMX and AMD's AVX512-BF16 do. Intel's AVX512-BF16 does not: one core of a Xeon without AMX (a virtual machine) made
    86 GFLOP/s in bfloat16 and 176 in float32.
    """
    if precision != "auto":
        return torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    is_faster = device.type == "cpu" and (
        _has("_is_amx_tile_supported") or (_has("_is_avx512_bf16_supported") and is_amd())
    )
    return torch.bfloat16 if is_faster else torch.float32


def _has(check: str) -> bool:
    """Whether a check of the processor in `torch.cpu` says so. A PyTorch without the check does not use the feature."""
    return getattr(torch.cpu, check, lambda: False)()


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
