"""What stands where there is no CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from host_reads import HostReads
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PlainCall:
    """Stands where a CUDA graph would: it calls the function, which always reads the same tensors."""

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: Any = None) -> None:
        self.function = function

    def __call__(self) -> Any:
        return self.function()


class FixedCall(PlainCall):
    """As `PlainCall`; raises if the host reads a tensor, or if a call makes other operations than the call before.

    The first call may make buffers, as a graph's warm-up does.

    Attributes:
        num_calls: of this function so far.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: Any = None) -> None:
        super().__init__(function, device)
        self.num_calls = 0
        self._captured: list[Any] = []

    def __call__(self) -> Any:
        reads, operations = HostReads(), _Operations()
        with reads.looking(), operations:
            result = self.function()
        self.num_calls += 1
        if reads.places:
            raise RuntimeError(f"the host reads {reads.places}")
        if self.num_calls > 2 and operations.made != self._captured:
            raise RuntimeError("a call makes other operations than the call before")
        self._captured = operations.made
        return result


class _Operations(TorchDispatchMode):
    """Notes each operation with the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        self.made.append((function, [tuple(each.shape) for each in tensors]))
        return result
