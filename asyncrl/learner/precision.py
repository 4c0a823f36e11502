"""The dtype of matrix products in training."""

from __future__ import annotations

from typing import Literal

import torch


def matmul_dtype(precision: Literal["auto", "float32", "bf16"], device: torch.device) -> torch.dtype:
    """Resolves `precision`: auto is bfloat16 where the hardware has instructions for it; elsewhere it is slower."""
    if precision == "auto":
        return torch.bfloat16 if _multiplies_bf16(device) else torch.float32
    return torch.bfloat16 if precision == "bf16" else torch.float32


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu":
        return False
    # AVX512-BF16 and AMX. A version of PyTorch that cannot check for one of them does not use it.
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(check() for check in checks if check is not None)
