"""What travels from a pool to its bridge: slots or rows of a replay as bytes, or gradients; reports and counts.

A mode has a receiver in the bridge and a sender in the pool (`asyncrl.contrib.ray_pools.ends`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import FloatArray
from asyncrl.contrib.ray_pools.settings import ClusterSettings
from asyncrl.contrib.ray_pools.worker_states import WorkerState
from asyncrl.envs.spec import FLOAT_BYTES, ObservationLayout
from asyncrl.observers.reports import Report
from asyncrl.processes.children import RunFailed
from asyncrl.run.setup import RunSetup

BATCH_BYTES = 1 << 20
"""Slots and rows are joined up to about this size while all requests for batches are being answered."""

LARGEST_FLOAT16 = 65504.0

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class SentSlots:
    """Slots that are ready.

    Attributes:
        slots: their numbers.
        content: their bytes, [slots, bytes of a slot], see `slot_record`.
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
    """

    rows: Sequence[tuple[int, int]]
    content: Bytes
    first_obs: Mapping[int, Bytes]

    @property
    def num_bytes(self) -> int:
        """Size of what travels, without counts and numbers."""
        return self.content.nbytes + sum(obs.nbytes for obs in self.first_obs.values())


@dataclass(frozen=True)
class SentGradients:
    """Gradients of workers that train.

    Attributes:
        places: their places, those of a worker in the order in which it has computed them.
        content: [gradients, N] float32.
        states: of all workers of the pool; `used_steps` counts from the start of the pool, and only workers with
            gradients here have `moments`.
    """

    places: Sequence[int]
    content: FloatArray
    states: Sequence[WorkerState]

    @property
    def num_bytes(self) -> int:
        """Size of what travels, without counts and numbers."""
        return self.content.nbytes + sum(entry.nbytes for state in self.states for entry in state.moments.values())


Payload = SentSlots | SentRows | SentGradients


@dataclass(frozen=True)
class Batch:
    """An answer of a pool.

    Attributes:
        number: of the pool's answers, from 0; the bridge takes them in this order.
        payload: slots, rows or gradients; None if there are none.
        collected: environment steps that each worker of the pool has made so far.
        has_finished_episode: whether an episode was finished.
        reports: of the workers since the last answer, and restarts of workers.
        failure: why the pool cannot continue.
    """

    number: int
    payload: Payload | None
    collected: dict[int, int]
    has_finished_episode: bool
    reports: Sequence[Report]
    failure: RunFailed | None


class Receiver(Protocol):
    """Takes the place of a pool's workers on the learner's machine."""

    def __init__(self, setup: RunSetup, workers: Sequence[int]) -> None: ...

    @property
    def start(self) -> Any:
        """What the sender of a new pool begins with."""

    def take_permits(self) -> list[tuple[int, int]]:
        """What the pool may make since the last call: split and slot, split and number of rows, or worker and place."""

    def write(self, payload: Any, offset_s: float) -> None:
        """Writes a payload into the arena, as the workers would. The pool's clock is `offset_s` ahead."""


class Sender(ABC):
    """The pool's side: lets the workers of the pool make what the bridge permits, and packs what they have made.

    A permit names a publication of weights, and waits for it: calls of the bridge may overtake each other.
    """

    def __init__(self, setup: RunSetup, waker: Waker, workers: Mapping[int, Waker], start: Any) -> None:
        """Permits nothing yet.

        Args:
            setup: the pool's.
            waker: wakes this side of the exchange.
            workers: wake the rollout workers of the pool, by their number in the run.
            start: `Receiver.start`.
        """
        self._waker, self._workers = waker, workers
        self._lock = threading.Lock()
        self._publication = 0
        self._waiting: list[tuple[int, int, int]] = []

    def record_publication(self, number: int) -> None:
        """Notes that the workers can read the learner's publication `number`."""
        with self._lock:
            self._publication = number
            self._use_permits()

    def permit(self, publication: int, permits: Sequence[tuple[int, int]]) -> None:
        """Takes permits, to be used with weights at least as new as `publication`."""
        with self._lock:
            self._waiting += [(publication, owner, number) for owner, number in permits]
            self._use_permits()

    def _use_permits(self) -> None:
        self.use([(owner, number) for publication, owner, number in self._waiting if publication <= self._publication])
        self._waiting = [permit for permit in self._waiting if permit[0] > self._publication]

    @abstractmethod
    def use(self, permits: Sequence[tuple[int, int]]) -> None:
        """Lets the workers make what they are permitted, now that its weights have arrived."""

    @abstractmethod
    def take(self, timeout_s: float) -> Payload | None:
        """Waits for what the workers make, at most `timeout_s`, and packs it. Called by one thread at a time."""

    @property
    def dropped_samples(self) -> int:
        """Samples that were lost with workers of this pool and that no worker reports."""
        return 0

    def serve(self, control: RunControl) -> None:  # noqa: B027
        """The main loop of a thread, where a sender needs one; it works until the run has ended."""


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


class PackedObservations(PackedField):
    """Observations [N, ..., row_size], whose floating-point numbers travel as float16.

    They are rounded, and those beyond float16's largest number become this number. Numbers of integer spaces and images
    travel as they are.
    """

    def __init__(self, array: npt.NDArray[Any], layout: ObservationLayout) -> None:
        self._rows: Bytes = array.reshape(len(array), -1, array.shape[-1]).view(np.uint8)
        self._runs = _runs(layout)
        self.num_bytes = self._rows.shape[1] * float16_row_bytes(layout)

    def pack(self, item: int, out: Bytes) -> None:
        start = 0
        for place, is_half in self._runs:
            part = self._rows[item][:, place]
            if is_half:
                numbers = np.clip(part.view(np.float32), -LARGEST_FLOAT16, LARGEST_FLOAT16)
                part = numbers.astype(np.float16).view(np.uint8)
            out[start : start + part.size] = part.reshape(-1)
            start += part.size

    def unpack(self, content: Bytes, item: int) -> None:
        start = 0
        for place, is_half in self._runs:
            target = self._rows[item][:, place]
            stop = start + (target.size // 2 if is_half else target.size)
            if is_half:
                target.view(np.float32)[...] = content[start:stop].view(np.float16).reshape(len(target), -1)
            else:
                target[...] = content[start:stop].reshape(target.shape)
            start = stop


class PackedRecord:
    """Several fields whose items travel one behind the other.

    Attributes:
        num_bytes: of an item of all fields.
    """

    def __init__(self, fields: Sequence[PackedField]) -> None:
        self._fields = fields
        self.num_bytes = sum(field.num_bytes for field in fields)

    def pack(self, item: int, out: Bytes) -> None:
        """Copies an item of each field to `out` [num_bytes]."""
        start = 0
        for field in self._fields:
            field.pack(item, out[start : start + field.num_bytes])
            start += field.num_bytes

    def unpack(self, content: Bytes, item: int) -> None:
        """Writes `content` [num_bytes] into an item of each field."""
        start = 0
        for field in self._fields:
            field.unpack(content[start : start + field.num_bytes], item)
            start += field.num_bytes


def float16_row_bytes(layout: ObservationLayout) -> int:
    """Bytes that a row of observations takes on the way, if its floating-point numbers travel as float16."""
    return sum((place.stop - place.start) // (2 if is_half else 1) for place, is_half in _runs(layout))


def _runs(layout: ObservationLayout) -> list[tuple[slice, bool]]:
    """The bytes of a row in runs, and whether each run travels as float16."""
    # Choices, flags and masks are 0 and 1.
    is_half = [
        part.kind != "numbers" or np.issubdtype(part.dtype, np.floating)
        for part in layout.parts
        if part.kind != "image"
        for _ in range(part.size)
    ]
    starts = [idx for idx, half in enumerate(is_half) if idx == 0 or half != is_half[idx - 1]]
    runs = [
        (slice(FLOAT_BYTES * start, FLOAT_BYTES * stop), is_half[start])
        for start, stop in zip(starts, [*starts[1:], len(is_half)], strict=False)
    ]
    num_pixel_bytes = layout.row_size - FLOAT_BYTES * len(is_half) if layout.num_pixels else 0
    if num_pixel_bytes > 0:
        runs.append((slice(FLOAT_BYTES * len(is_half), layout.row_size), False))
    return runs


def pack_observations(array: npt.NDArray[Any], setup: RunSetup) -> PackedField:
    """Observations [N, ..., row_size], as the settings let them travel."""
    if ClusterSettings.of(setup.config).cluster_observations == "float16":
        return PackedObservations(array, setup.spec.observation)
    return PackedField(array)
