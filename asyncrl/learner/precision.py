"""Which numbers the matrix products of training take."""

from __future__ import annotations

from typing import Literal

import torch


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """Resolve `precision`: auto takes bfloat16 where the processor or the device has instructions that multiply it.

    Processors without them multiply bfloat16 too, but slower than float32.
    """
    if precision == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu":
        return False
    # AVX512-BF16 and AMX. Versions of PyTorch that do not know one of them would not use it either.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(check() for check in checks if check is not None)
