"""What travels from a pool to its bridge: slots as bytes, reports and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena
from asyncrl.monitoring.reports import Report
from asyncrl.runtime.processes import RunFailed

PARCEL_BYTES = 1 << 20
"""Ready slots are joined up to about this size while all requests for parcels are being answered."""

_PREFIX = "slots."
OWN_WORDS = ("slots.state", "slots.owner")
"""Arrays of slots that do not travel: each arena has its own."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Parcel:
    """An answer of a pool.

    Attributes:
        number: of the pool's answers, from 0; the bridge takes them in this order.
        slots: numbers of the slots.
        content: their bytes, [slots, bytes of a slot], as `SlotCodec` packs them.
        collected: environment steps that each worker of the pool has made so far.
        has_finished_episode: whether an episode was finished.
        reports: of the workers since the last answer, and restarts of workers.
        failure: why the pool cannot continue.
    """

    number: int
    slots: Sequence[int]
    content: Bytes
    collected: dict[int, int]
    has_finished_episode: bool
    reports: Sequence[Report]
    failure: RunFailed | None


class SlotCodec:
    """Copies slots between an arena and bytes: all arrays of a slot one behind the other, but state and owner.

    Attributes:
        slot_bytes: size of a slot.
    """

    def __init__(self, arena: Arena) -> None:
        names = [spec.name for spec in arena.specs if spec.name.startswith(_PREFIX) and spec.name not in OWN_WORDS]
        arrays: list[npt.NDArray[Any]] = [arena.array(name) for name in names]
        self._fields: list[Bytes] = [array.reshape(len(array), -1).view(np.uint8) for array in arrays if array.size > 0]
        self.slot_bytes = sum(field.shape[1] for field in self._fields)

    def pack(self, slots: Sequence[int]) -> Bytes:
        """The bytes of slots, [slots, slot_bytes]."""
        content = np.empty((len(slots), self.slot_bytes), np.uint8)
        for row, slot in zip(content, slots, strict=True):
            start = 0
            for field in self._fields:
                row[start : start + field.shape[1]] = field[slot]
                start += field.shape[1]
        return content

    def unpack(self, content: Bytes, slot: int) -> None:
        """Writes the bytes of one slot, [slot_bytes], into the slot."""
        start = 0
        for field in self._fields:
            field[slot] = content[start : start + field.shape[1]]
            start += field.shape[1]
