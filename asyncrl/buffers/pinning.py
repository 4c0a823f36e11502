"""Page-locked memory, which a CUDA device copies from and to while the host continues."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.arena import Arena

log = logging.getLogger(__name__)

_SUCCESS = 0


def pin_arena(arena: Arena, owner: object) -> bool:
    """Registers all of an arena with CUDA, as long as `owner` lives; returns whether it is registered.

    If the driver refuses, copies out of the arena still work, but the host waits for each.
    """
    pages = arena.pages()
    code = int(_runtime().cudaHostRegister(pages.ctypes.data, pages.nbytes, 0))
    if code != _SUCCESS:
        _clear_error()
        log.warning("shared memory of %d bytes could not be page-locked: CUDA error %d", pages.nbytes, code)
        return False
    weakref.finalize(owner, _unpin, pages)  # keeps the memory mapped until then
    return True


def _unpin(pages: npt.NDArray[np.uint8]) -> None:
    if int(_runtime().cudaHostUnregister(pages.ctypes.data)) != _SUCCESS:
        _clear_error()


def _clear_error() -> None:
    """Clears the last error of CUDA, which PyTorch would otherwise raise at the next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0.0)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def host_buffer(shape: tuple[int, ...], dtype: Any, device: torch.device) -> torch.Tensor:
    """Returns zeros on the host, page-locked if `device`, to or from which they are copied, is a CUDA device."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The same tensors on a device; to a CUDA device from page-locked memory, so that the host does not wait."""
    if device.type != "cuda" or tensors[0].is_cuda:
        return [tensor.to(device) for tensor in tensors]
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
