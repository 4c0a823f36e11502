"""Products of float32 matrices on a CPU, by the faster of the two libraries that PyTorch contains.

PyTorch multiplies float32 matrices with Intel's MKL, which uses AVX-512 on Intel's processors alone. oneDNN, which
PyTorch contains for other operators, uses it on AMD's, too: on a core of a Zen 5 a product of matrices of 256 x 256
made 238 instead of 112 GFLOP/s.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

FloatArray = npt.NDArray[np.float32]

SMALLEST_FOR_ONEDNN = 2**21
"""Multiplications of one product of matrices from which on oneDNN is faster: a call of it takes longer."""

_CPU_INFO = Path("/proc/cpuinfo")


def bmm(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Writes `left @ right` to `out: [K, M, N]`, for `left: [K, M, L]` and `right: [K, L, N]`; returns it."""
    if not _is_for_onednn(left, right.shape[2]):
        return torch.bmm(left, right, out=out)
    for one_left, one_right, one_out in zip(left, right, out, strict=True):
        one_out.copy_(_onednn_linear(one_left, one_right.t(), None))
    return out


def baddbmm(bias: Tensor, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Writes `left @ right + bias` to `out: [K, M, N]`, for `bias: [K, 1, N]`; returns it."""
    if not _is_for_onednn(left, right.shape[2]):
        return torch.baddbmm(bias, left, right, out=out)
    for one_bias, one_left, one_right, one_out in zip(bias, left, right, out, strict=True):
        one_out.copy_(_onednn_linear(one_left, one_right.t(), one_bias[0]))
    return out


def dot(left: FloatArray, right: FloatArray, out: FloatArray) -> FloatArray:
    """Writes `left @ right` to `out: [M, N]`, for float32 arrays `left: [M, L]` and `right: [L, N]`; returns it."""
    if left.size * right.shape[1] < SMALLEST_FOR_ONEDNN or not onednn_is_faster():
        return np.dot(left, right, out=out)
    product = _onednn_linear(torch.from_numpy(left), torch.from_numpy(right.T), None)
    torch.from_numpy(out).copy_(product)
    return out


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`inputs @ weight.t() + bias`, `[M, N]`, for `inputs: [M, L]` and `weight: [N, L]`; autograd differentiates it."""
    # Compilers and autocast know PyTorch's own operator.
    is_special = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if is_special or inputs.dim() != 2 or not _is_for_onednn(inputs, weight.shape[0]):
        return functional.linear(inputs, weight, bias)
    if torch.is_autocast_enabled(inputs.device.type):
        return functional.linear(inputs, weight, bias)
    outputs: Tensor = _Linear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


class _Linear(torch.autograd.Function):
    """`linear` by oneDNN."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _onednn_linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _onednn_linear(gradient, weight.t(), None) if needs_inputs else None,
            _onednn_linear(gradient.t(), inputs.t(), None) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor multiplies large float32 matrices faster with oneDNN than PyTorch does without it."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_both or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    is_amd = _CPU_INFO.exists() and "AuthenticAMD" in _CPU_INFO.read_text(errors="replace")
    return is_amd and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _is_for_onednn(left: Tensor, num_out: int) -> bool:
    """Whether oneDNN is to multiply matrices `[M, L]`, the last dimensions of `left`, and `[L, num_out]`."""
    if left.shape[-2] * left.shape[-1] * num_out < SMALLEST_FOR_ONEDNN:
        return False
    return left.dtype == torch.float32 and left.device.type == "cpu" and onednn_is_faster()


def _onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`inputs @ weight.t() + bias`."""
    operators: Any = torch.ops.mkldnn
    product: Tensor = operators._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product
