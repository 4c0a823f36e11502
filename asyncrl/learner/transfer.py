"""What was gathered on the host, on its way to the learner's device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HostToDevice:
    """Moves tensors to a device; to a CUDA device out of page-locked memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        """Takes the device where they are wanted."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same tensors on the device; the host waits for nothing, the device's present stream for the copies."""
        if self._stream is None:
            return [tensor.to(self._device) for tensor in tensors]
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors]
        current.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(current)
        return moved
