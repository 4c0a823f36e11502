"""What travels from a pool to its bridge: slots or rows of a replay as bytes, reports and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.monitoring.reports import Report
from asyncrl.runtime.processes import RunFailed

PARCEL_BYTES = 1 << 20
"""Slots and rows are joined up to about this size while all requests for parcels are being answered."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SentSlots:
    """Slots that are ready.

    Attributes:
        slots: their numbers.
        content: their bytes, [slots, bytes of a slot], as `SlotCodec` packs them.
    """

    slots: Sequence[int]
    content: Bytes

    @property
    def num_bytes(self) -> int:
        """Size of what travels, without counts and numbers."""
        return self.content.nbytes


@dataclass(frozen=True)
class SentRows:
    """Rows of a replay, those of a split in their order.

    Attributes:
        rows: split and number of each.
        content: their bytes, [rows, bytes of a row], as `RowCodec` packs them.
        first_obs: observations [bytes] of rows whose environments were reset before them, by position in `rows`;
            those of all other rows travel with the row before.
        env_steps: environment steps that splits have made in this pool, for those whose number has changed.
    """

    rows: Sequence[tuple[int, int]]
    content: Bytes
    first_obs: Mapping[int, Bytes]
    env_steps: Mapping[int, int]

    @property
    def num_bytes(self) -> int:
        """Size of what travels, without counts and numbers."""
        return self.content.nbytes + sum(obs.nbytes for obs in self.first_obs.values())


@dataclass(frozen=True)
class Parcel:
    """An answer of a pool.

    Attributes:
        number: of the pool's answers, from 0; the bridge takes them in this order.
        cargo: slots or rows; None if there are none.
        collected: environment steps that each worker of the pool has made so far.
        has_finished_episode: whether an episode was finished.
        reports: of the workers since the last answer, and restarts of workers.
        failure: why the pool cannot continue.
    """

    number: int
    cargo: SentSlots | SentRows | None
    collected: dict[int, int]
    has_finished_episode: bool
    reports: Sequence[Report]
    failure: RunFailed | None


class PackedField:
    """An array [N, ...] whose items travel as bytes.

    Attributes:
        num_bytes: of an item.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._items: Bytes = array.reshape(len(array), -1).view(np.uint8)
        self.num_bytes: int = self._items.shape[1]

    def pack(self, item: int, out: Bytes) -> None:
        """Copies an item to `out` [num_bytes]."""
        out[:] = self._items[item]

    def unpack(self, content: Bytes, item: int) -> None:
        """Writes `content` [num_bytes] into an item."""
        self._items[item] = content
