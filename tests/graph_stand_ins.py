"""What stands where there is no CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class PlainCall:
    """Stands where a CUDA graph would: it calls the function, which always reads the same tensors."""

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: Any = None) -> None:
        self.function = function

    def __call__(self) -> Any:
        return self.function()
