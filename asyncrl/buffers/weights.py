"""Weights from the learner to all processes that act: versioned blocks in the arena, one writer, any number of readers.

Two buffers alternate: publication n is in buffer n % 2. A reader's copy is consistent if and only if the count of
publications did not change while it copied, because publication n + 2 is the first to overwrite buffer n % 2, and the
learner begins it only after the count became n + 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec

if TYPE_CHECKING:  # planning the memory needs no torch
    import torch
    from torch import Tensor

    from asyncrl.buffers.device_weights import DeviceWeights

HANDLE_BYTES = 64
"""Size of a handle of CUDA memory (CU_IPC_HANDLE_SIZE)."""

FloatArray = npt.NDArray[np.float32]


class Publication(NamedTuple):
    """Published weights.

    Attributes:
        number: of the publication, from 1.
        version: policy version.
        env_steps: environment steps that they were trained on.
    """

    number: int
    version: int
    env_steps: int


class WeightsChannel:
    """The newest published weights and their policy version."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._on_device: DeviceWeights | None = None
        self._buffers = arena.array("weights.buffers")
        self._versions = arena.words("weights.versions")
        self._env_steps = arena.words("weights.env_steps")
        self._count = arena.words("weights.count")

    @property
    def num_values(self) -> int:
        """Elements of a block."""
        return int(self._buffers.shape[1])

    @property
    def num_publications(self) -> int:
        return int(self._count[0])

    @property
    def newest(self) -> Publication:
        """The newest publication; what `read` returns next may be newer."""
        count = self._count[0]
        return Publication(count, self._versions[count % 2], self._env_steps[count % 2])

    def allocate_on_device(self, device: torch.device) -> None:
        """Publishes on the learner's device too, if others can read there (learner, before it publishes)."""
        from asyncrl.buffers.device_weights import allocate_device_weights

        self._on_device = allocate_device_weights(self._arena, device, self._buffers.shape[1])

    def open_on_device(self, device: torch.device) -> bool:
        """Returns whether `read` can read on `device`; to be called after the first publication."""
        from asyncrl.buffers.device_weights import open_device_weights

        self._on_device = open_device_weights(self._arena, device, self._buffers.shape[1])
        return self._on_device is not None

    def publish(self, block: FloatArray, version: int, env_steps: int, on_device: Tensor | None = None) -> None:
        """Makes `block` [N] the newest weights (learner only).

        Args:
            block: weights and statistics.
            version: their policy version.
            env_steps: environment steps that they were trained on.
            on_device: the same block on the learner's device; `block` is copied there if not given.
        """
        count = self._count[0] + 1
        if self._on_device is not None:
            self._on_device.write(count % 2, block if on_device is None else on_device)
        self._buffers[count % 2] = block
        self._versions[count % 2] = version
        self._env_steps[count % 2] = env_steps
        self._count[0] = count

    def read(self, out: FloatArray | Tensor, seen: int) -> Publication | None:
        """Copies the newest weights if they are newer than publication number `seen`; returns what was copied.

        It copies again until no publication has overwritten the buffer meanwhile.

        Args:
            out: [N] float32, overwritten if there is something new; a tensor on the device that `open_on_device` was
                called with is filled there.
            seen: number of the publication that the caller has.
        """
        while (count := self._count[0]) != seen:
            if isinstance(out, np.ndarray):
                np.copyto(out, self._buffers[count % 2])
            else:
                assert self._on_device is not None
                self._on_device.read(count % 2, out)
            version, env_steps = self._versions[count % 2], self._env_steps[count % 2]
            if self._count[0] == count:
                return Publication(count, version, env_steps)
        return None


def weights_specs(num_values: int) -> list[ArraySpec]:
    """Arrays of a channel for blocks of `num_values` float32."""
    return [
        ArraySpec("weights.buffers", "float32", (2, num_values)),
        ArraySpec("weights.versions", "int64", (2,)),
        ArraySpec("weights.env_steps", "int64", (2,)),
        ArraySpec("weights.count", "int64", (1,)),
        # Memory of a device: the driver's handle, and the number of the device plus 1 once the memory is there.
        ArraySpec("weights.handle", "uint8", (HANDLE_BYTES,)),
        ArraySpec("weights.handle_device", "int64", (1,)),
    ]
