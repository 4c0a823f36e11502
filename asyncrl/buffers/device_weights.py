"""Published weights in the memory of a CUDA device, for inference workers on the same device.

The learner allocates two buffers and writes the driver's handle of them into the arena; an inference worker opens it.
The words of `WeightsChannel` say which buffer is the newest and whether a copy is consistent, as for the buffers on the
host: both sides wait for their copies before they use the words. The memory belongs to the learner's process.

PyTorch's own sharing of CUDA tensors is not used: it counts references in a named file in `/dev/shm`.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.weights import HANDLE_BYTES, FloatArray

log = logging.getLogger(__name__)

_LAZY_ENABLE_PEER_ACCESS = 1
_BLOCK_BYTES = 1 << 21


class DeviceWeights:
    """The two buffers `[2, N] float32`."""

    def __init__(self, buffers: Tensor) -> None:
        self._buffers = buffers

    def write(self, place: int, block: Tensor | FloatArray) -> None:
        """Copies `block [N]` to a buffer (learner)."""
        self._buffers[place].copy_(torch.as_tensor(block))
        self._wait()

    def read(self, place: int, out: Tensor) -> None:
        """Copies a buffer to `out [N]`."""
        out.copy_(self._buffers[place])
        self._wait()

    def _wait(self) -> None:
        if self._buffers.is_cuda:
            torch.cuda.current_stream(self._buffers.device).synchronize()


def allocate_device_weights(arena: Arena, device: torch.device, num_values: int) -> DeviceWeights | None:
    """Allocates the buffers on the learner's device and writes their handle into the arena.

    Returns None if the device is not a CUDA device, or its memory cannot be shared.
    """
    if device.type != "cuda":
        return None
    address, handle = ctypes.c_uint64(), _Handle()
    try:
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # creates the device's context
            _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(_allocated_bytes(num_values)))
            _call("cuIpcGetMemHandle", ctypes.byref(handle), address)
            buffers = _view(address.value, num_values, device)
    except (OSError, RuntimeError):
        log.warning("weights go over the host: the device's memory cannot be shared", exc_info=True)
        return None
    arena.array("weights.handle")[:] = np.frombuffer(bytes(handle), dtype=np.uint8)
    arena.words("weights.handle_device")[0] = _number(device) + 1
    return DeviceWeights(buffers.zero_())


def open_device_weights(arena: Arena, device: torch.device, num_values: int) -> DeviceWeights | None:
    """Opens the learner's buffers if they are on `device`; to be called after the first publication."""
    if device.type != "cuda" or arena.words("weights.handle_device")[0] != _number(device) + 1:
        return None
    address, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(arena.array("weights.handle").tobytes())
    try:
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(_LAZY_ENABLE_PEER_ACCESS))
            return DeviceWeights(_view(address.value, num_values, device))
    except (OSError, RuntimeError):
        log.warning("weights come over the host: the learner's memory could not be opened", exc_info=True)
        return None


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class _Memory:
    """Describes memory at an address of a device to PyTorch."""

    def __init__(self, address: int, num_values: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, num_values),
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _allocated_bytes(num_values: int) -> int:
    """Whole blocks: the driver cuts smaller allocations out of one, and their handle would be that of the block."""
    return -(-2 * num_values * 4 // _BLOCK_BYTES) * _BLOCK_BYTES


def _view(address: int | None, num_values: int, device: torch.device) -> Tensor:
    assert address is not None
    return torch.as_tensor(_Memory(address, num_values), device=device)


def _call(name: str, *arguments: Any) -> None:
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name} returned CUDA error {code}")


def _number(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
