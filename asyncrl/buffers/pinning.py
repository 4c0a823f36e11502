"""Page-locked memory: what a CUDA device copies from and to by itself, while the host goes on."""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.arena import Arena

log = logging.getLogger(__name__)

_SUCCESS = 0


def pin_arena(arena: Arena, owner: object) -> bool:
    """Registers all of an arena with CUDA, for as long as `owner` lives.

    Where the driver refuses, copies out of the arena are right, but the host waits for each.

    Args:
        arena: the shared memory.
        owner: whoever copies out of it.

    Returns:
        Whether it is registered.
    """
    pages = arena.pages()
    code = int(_runtime().cudaHostRegister(pages.ctypes.data, pages.nbytes, 0))
    if code != _SUCCESS:
        _clear_error()
        log.warning("shared memory of %d bytes could not be page-locked: CUDA error %d", pages.nbytes, code)
        return False
    weakref.finalize(owner, _unpin, pages)  # which keeps the memory mapped until then
    return True


def _unpin(pages: npt.NDArray[np.uint8]) -> None:
    if int(_runtime().cudaHostUnregister(pages.ctypes.data)) != _SUCCESS:
        _clear_error()


def _clear_error() -> None:
    """CUDA says again at the next kernel what was refused before, and PyTorch would raise it there."""
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0.0)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def host_buffer(shape: tuple[int, ...], dtype: Any, device: torch.device) -> torch.Tensor:
    """Zeros on the host, page-locked if they are to be copied to or from a CUDA device."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
