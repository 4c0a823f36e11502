"""Finds where the host reads a tensor, for which it would wait if the tensor were on a GPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import asyncrl

_PACKAGE = str(Path(asyncrl.__file__).parent)

_READS = {Tensor.cpu, Tensor.numpy, Tensor.tolist}
"""Calls that are not operations of PyTorch if a tensor is on the CPU."""

_OF_HOST = {torch.randperm, torch.randint}
"""Make tensors of the host, which are free to read."""

_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.masked_select.default,
    _aten.nonzero.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.unique_consecutive.default,
}
"""Their result, or its shape, depends on numbers."""


def _is_on_host(value: Any) -> bool:
    return getattr(value, "is_on_host", False)


class HostReads:
    """Counts reads by the module and function of the package that make them, while `looking`."""

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()

    @contextmanager
    def looking(self) -> Iterator[None]:
        with _Calls(self), _Operations(self):
            yield

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, during which reads are counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.looking():
                return function(*args, **kwargs)

        return call

    def note(self) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back
        self.places[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"] += 1


class _Calls(TorchFunctionMode):
    """Sees calls from Python, and marks tensors of the host: only these are made of such tensors alone."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        are_of_host = all(map(_is_on_host, given))
        if function in _READS and not are_of_host:
            self._reads.note()
            result = result.clone() if isinstance(result, Tensor) else result
        if function in _OF_HOST or function is Tensor.cpu or (given and are_of_host):
            for each in tree_leaves(result):
                if isinstance(each, Tensor):
                    each.is_on_host = True  # type: ignore[attr-defined]
        if function is Tensor.to:
            result.is_on_host = False
        return result


class _Operations(TorchDispatchMode):
    """Sees operations, also of autograd and within others."""

    def __init__(self, reads: HostReads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        has_mask = False
        if function in (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default):
            has_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        is_waiting = function in _WAITING or has_mask
        if function is _aten.repeat_interleave.Tensor:
            is_waiting = (kwargs or {}).get("output_size") is None
        if is_waiting and not _is_on_host(args[0]):
            self._reads.note()
        return function(*args, **(kwargs or {}))
