"""Products of float32 matrices on a CPU, by oneDNN where it is faster than the usual library.

PyTorch multiplies float32 matrices with Intel's MKL, which uses AVX-512 on Intel's processors alone. oneDNN, which
PyTorch contains for other operators, uses it on AMD's, too: on a core of a Zen 5 a product of matrices of 256 x 256
made 238 GFLOP/s, MKL 112 and NumPy's OpenBLAS 131.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from asyncrl.config import host

FloatArray = npt.NDArray[np.float32]

SMALLEST_FOR_ONEDNN = 2**21
"""Multiplications of one product of matrices from which on oneDNN is faster; smaller ones cost less without it."""

FEWEST_ROWS_FOR_ONEDNN = 8
"""Rows (samples) from which on oneDNN is faster."""

_SIZES_IN_AN_OCTAVE_LOG2 = 4


def bmm(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Writes `left @ right` to `out: [K, M, N]`, for `left: [K, M, L]` and `right: [K, L, N]`; returns it.

    For sizes that are the same in every call: oneDNN keeps a kernel of about 0.7 MB for each shape.
    """
    if not _is_for_onednn(left, right.shape[2]):
        return torch.bmm(left, right, out=out)
    for one_left, one_right, one_out in zip(left, right, out, strict=True):
        one_out.copy_(_onednn_linear(one_left, one_right.t(), None))
    return out


def baddbmm(bias: Tensor, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Returns `left @ right + bias`, `[K, M, N]`, for `bias: [K, 1, N]`, in `out` or, if K is 1, perhaps in new memory.

    For sizes that are the same in every call: oneDNN keeps a kernel of about 0.7 MB for each shape.
    """
    if not _is_for_onednn(left, right.shape[2]):
        return torch.baddbmm(bias, left, right, out=out)
    if len(left) == 1:
        return _onednn_linear(left[0], right[0].t(), bias[0, 0]).unsqueeze(0)
    for one_bias, one_left, one_right, one_out in zip(bias, left, right, out, strict=True):
        one_out.copy_(_onednn_linear(one_left, one_right.t(), one_bias[0]))
    return out


def dot(left: FloatArray, right: FloatArray, out: FloatArray) -> FloatArray:
    """Writes `left @ right` to `out: [R, N]`, for arrays `left: [R, L]` and `right: [L, N]`; returns it.

    The number of rows R may change from call to call.
    """
    rows = _rows_for_onednn(len(left), right.size)
    if rows > 0:
        product = _onednn_linear(torch.from_numpy(left[:rows]), torch.from_numpy(right.T), None)
        torch.from_numpy(out[:rows]).copy_(product)
    if rows < len(left):
        np.dot(left[rows:], right, out=out[rows:])
    return out


def dot_of_rows(left: FloatArray, right: FloatArray, out: FloatArray) -> FloatArray:
    """Writes `left.T @ right` to `out: [M, N]`, for arrays `left: [R, M]` and `right: [R, N]`; returns it.

    The number of rows R may change from call to call.
    """
    rows = _rows_for_onednn(len(left), out.size)
    if rows == 0:
        return np.dot(left.T, right, out=out)
    product = _onednn_linear(torch.from_numpy(left[:rows].T), torch.from_numpy(right[:rows].T), None)
    torch.from_numpy(out).copy_(product)
    if rows < len(left):
        out += np.dot(left[rows:].T, right[rows:])
    return out


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`inputs @ weight.t() + bias`, `[R, N]`, for `inputs: [R, L]` and `weight: [N, L]`; autograd differentiates it.

    The number of rows R may change from call to call.
    """
    # Compilers, autocast and transforms of functions know PyTorch's own operator.
    is_special = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if is_special or inputs.dim() != 2 or not _is_for_onednn(inputs, weight.shape[0]):
        return functional.linear(inputs, weight, bias)
    if torch.is_autocast_enabled(inputs.device.type) or torch._C._are_functorch_transforms_active():
        return functional.linear(inputs, weight, bias)
    outputs: Tensor = _Linear.apply(inputs, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


class _Linear(torch.autograd.Function):
    """`linear` by oneDNN."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _times(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        bias_gradient = gradient.sum(0) if needs_bias else None
        if torch.is_grad_enabled():  # these gradients will be differentiated
            of_inputs = gradient @ weight if needs_inputs else None
            return of_inputs, gradient.t() @ inputs if needs_weight else None, bias_gradient
        return (
            _times(gradient, weight.t(), None) if needs_inputs else None,
            _row_times(gradient, inputs) if needs_weight else None,
            bias_gradient,
        )


def _times(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`inputs @ weight.t() + bias`."""
    rows = _rows_for_onednn(len(inputs), weight.numel())
    product = _onednn_linear(inputs[:rows], weight, bias)
    if rows == len(inputs):
        return product
    return torch.cat((product, functional.linear(inputs[rows:], weight, bias)))


def _row_times(left: Tensor, right: Tensor) -> Tensor:
    """`left.t() @ right`."""
    rows = _rows_for_onednn(len(left), left.shape[1] * right.shape[1])
    product = _onednn_linear(left[:rows].t(), right[:rows].t(), None)
    return product if rows == len(left) else product.addmm_(left[rows:].t(), right[rows:])


@functools.cache
def onednn_is_faster() -> bool:
    """Whether this processor multiplies large float32 matrices faster with oneDNN than PyTorch does without it."""
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_both or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return is_amd() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def is_amd() -> bool:
    """Whether AMD made this machine's processor."""
    return "AuthenticAMD" in host.cpu_info("vendor_id")


def _is_for_onednn(left: Tensor, num_out: int) -> bool:
    """Whether oneDNN is to multiply matrices `[M, L]`, the last dimensions of `left`, and `[L, num_out]`."""
    if _rows_for_onednn(left.shape[-2], left.shape[-1] * num_out) == 0:
        return False
    return left.dtype == torch.float32 and left.device.type == "cpu"


def _rows_for_onednn(rows: int, size: int) -> int:
    """How many of the rows of a product with `rows * size` multiplications oneDNN multiplies: few different numbers.

    oneDNN keeps a kernel of about 0.7 MB for each shape, and a dataset of PPO has any number of valid rows.
    """
    if rows < FEWEST_ROWS_FOR_ONEDNN or rows * size < SMALLEST_FOR_ONEDNN or not onednn_is_faster():
        return 0
    step = 1 << max(0, rows.bit_length() - 1 - _SIZES_IN_AN_OCTAVE_LOG2)
    return rows // step * step


def _onednn_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`inputs @ weight.t() + bias`."""
    operators: Any = torch.ops.mkldnn
    product: Tensor = operators._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product
