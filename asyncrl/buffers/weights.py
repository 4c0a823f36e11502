"""Weights from the learner to everyone who acts: versioned blocks in the arena, one writer, any number of readers.

Two buffers take turns. The count of publications is even more than a version: publication n lies in buffer n % 2, and a
reader's copy is whole exactly if the count did not move while it copied, because publication n + 2 is the first to
overwrite buffer n % 2 and is begun only after the count became n + 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec

if TYPE_CHECKING:  # those who only plan the memory need no torch
    import torch
    from torch import Tensor

    from asyncrl.buffers.device_weights import DeviceWeights

HANDLE_BYTES = 64
"""Of a handle of CUDA memory (CU_IPC_HANDLE_SIZE)."""

FloatArray = npt.NDArray[np.float32]


class Publication(NamedTuple):
    """What is known of published weights.

    Attributes:
        number: how many publications there were with it.
        version: its policy version.
        env_steps: environment steps that it was trained on.
    """

    number: int
    version: int
    env_steps: int


class WeightsChannel:
    """The newest published weights, with the policy version that they are."""

    def __init__(self, arena: Arena) -> None:
        """Views the arrays that `weights_specs` described."""
        self._arena = arena
        self._on_device: DeviceWeights | None = None
        self._buffers = arena.array("weights.buffers")
        self._versions = arena.words("weights.versions")
        self._env_steps = arena.words("weights.env_steps")
        self._count = arena.words("weights.count")

    @property
    def num_publications(self) -> int:
        """How many times weights were published; 0 before the first."""
        return int(self._count[0])

    @property
    def newest_env_steps(self) -> int:
        """Environment steps behind the newest publication; what `read` returns next may be newer."""
        return int(self._env_steps[self._count[0] % 2])

    @property
    def newest_version(self) -> int:
        """Policy version of the newest publication; what `read` returns next may be newer."""
        return int(self._versions[self._count[0] % 2])

    def offer(self, device: torch.device) -> None:
        """Publishes on the learner's device as well, if others can read there (learner, before it publishes)."""
        from asyncrl.buffers.device_weights import offer_device_weights

        self._on_device = offer_device_weights(self._arena, device, self._buffers.shape[1])

    def find(self, device: torch.device) -> bool:
        """Says whether the weights can be read on `device`, once they were published."""
        from asyncrl.buffers.device_weights import find_device_weights

        self._on_device = find_device_weights(self._arena, device, self._buffers.shape[1])
        return self._on_device is not None

    def publish(self, block: FloatArray, version: int, env_steps: int, on_device: Tensor | None = None) -> None:
        """Makes `block` [N] the newest weights (learner only).

        Args:
            block: weights and statistics.
            version: their policy version.
            env_steps: environment steps behind them.
            on_device: the same block where the learner has it; `block` is copied there if not given.
        """
        count = self._count[0] + 1
        if self._on_device is not None:
            self._on_device.write(count % 2, block if on_device is None else on_device)
        self._buffers[count % 2] = block
        self._versions[count % 2] = version
        self._env_steps[count % 2] = env_steps
        self._count[0] = count

    def read(self, out: FloatArray, seen: int) -> Publication | None:
        """Copies the newest weights if there were publications after number `seen`.

        Args:
            out: [N] float32, overwritten if there is something new.
            seen: the number of the publication that the caller has.

        Returns:
            What was copied, or None if there is nothing new.
        """
        while (count := self._count[0]) != seen:
            np.copyto(out, self._buffers[count % 2])
            version, env_steps = self._versions[count % 2], self._env_steps[count % 2]
            if self._count[0] == count:
                return Publication(count, version, env_steps)
        return None

    def read_on_device(self, out: Tensor, seen: int) -> Publication | None:
        """The same into memory of the device that was found."""
        assert self._on_device is not None
        while (count := self._count[0]) != seen:
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
        # For the memory of a device: the driver's handle, and the number of the device plus 1 once it is there.
        ArraySpec("weights.handle", "uint8", (HANDLE_BYTES,)),
        ArraySpec("weights.handle_device", "int64", (1,)),
    ]
