"""What was gathered on the host, on its way to the learner's device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The same tensors on a device; to a CUDA device out of page-locked memory, so that the host waits for nothing."""
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
