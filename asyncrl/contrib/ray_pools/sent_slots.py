"""Slots of trajectories on their way from a pool to the learner's arena.

    learner's machine                                  pool
    SlotLedger -- granted slots --> SlotReceiver ----> SlotSender: a PermitLedger grants them to the workers
    SlotLedger <-- ready slots ---- SlotReceiver <---- SlotSender: slots that the workers have filled

Slot n of the learner is slot n of the pool, and split n is split n, so nothing is translated. The pool has a slot from
the grant until it has packed it: a grant of the learner's `SlotLedger` is a permit for the pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.plan import ResourcePlan
from asyncrl.contrib.ray_pools.batches import (
    BATCH_BYTES,
    PackedField,
    PackedRecord,
    Sender,
    SentSlots,
    pack_observations,
)
from asyncrl.learner.slot_ledger import Columns, SlotExchange, SlotLedger
from asyncrl.run.setup import RunSetup

_PREFIX, _OBSERVATIONS = "slots.", "slots.obs"
OWN_WORDS = ("slots.state", "slots.owner")
"""Arrays of slots that do not travel: each arena has its own."""


def slot_record(setup: RunSetup) -> PackedRecord:
    """Copies slots between an arena and bytes: all arrays of a slot one behind the other, but state and owner."""
    arena = setup.arena
    names = [spec.name for spec in arena.specs if spec.name.startswith(_PREFIX) and spec.name not in OWN_WORDS]
    return PackedRecord(
        [
            pack_observations(arena.array(name), setup) if name == _OBSERVATIONS else PackedField(arena.array(name))
            for name in names
            if arena.array(name).size > 0
        ]
    )


class SlotReceiver:
    """Takes the place of a pool's rollout workers for the learner: consumes granted slots, announces ready ones."""

    def __init__(self, setup: RunSetup, workers: Sequence[int]) -> None:
        arena = setup.arena
        self._slots = TrajectorySlots(arena)
        self._record = slot_record(setup)
        self._granted = [IndexRing(arena, f"granted.{worker_idx}") for worker_idx in workers]
        self._ready = {worker_idx: IndexRing(arena, f"ready.{worker_idx}") for worker_idx in workers}
        self._worker_num_splits = setup.plan.worker_num_splits

    @property
    def start(self) -> None:
        """Nothing: a new pool has no slots."""

    def take_permits(self) -> list[tuple[int, int]]:
        slots = [slot for ring in self._granted for slot in ring.pop_all()]
        return [(self._slots.owner[slot], slot) for slot in slots]

    def write(self, payload: SentSlots, offset_s: float) -> None:
        for content, slot in zip(payload.content, payload.slots, strict=True):
            split_idx = self._slots.owner[slot]
            self._record.unpack(content, slot)
            self._slots.chosen_at[slot] -= offset_s
            self._slots.finish(slot, split_idx)
            self._ready[split_idx // self._worker_num_splits].push(slot)


class PermitLedger(SlotLedger):
    """The slots that a pool has of the learner. Used under the lock of its `SlotExchange`.

    Attributes:
        permits: split and slot of each permit that is not granted to a worker yet; any thread may append some.
    """

    def __init__(self, slots: TrajectorySlots, plan: ResourcePlan, slot_bytes: int) -> None:
        super().__init__(slots, plan)
        self.permits: deque[tuple[int, int]] = deque()
        self._most = max(1, BATCH_BYTES // slot_bytes)

    def add_ready(self, slot: int) -> None:
        self.ready.append(slot)

    def grant(self) -> list[tuple[int, int]]:
        grants = [self.permits.popleft() for _ in range(len(self.permits))]
        for split_idx, slot in grants:
            self._slots.grant(slot, split_idx)
        return grants

    def take_dataset(self, learner_version: int) -> list[Columns] | None:
        """The slots of the next batch; None if none is ready. `learner_version` is not used."""
        taken = [self.ready.popleft() for _ in range(min(len(self.ready), self._most))]
        for slot in taken:
            self._slots.take(slot)
        return [Columns(slot, 0, self._slots.num_envs, is_last=True) for slot in taken] or None

    def release(self, columns: list[Columns]) -> None:
        """Frees slots that were packed."""
        for part in columns:
            self._slots.free(part.slot)


class SlotSender(Sender):
    """Grants the slots of the learner to the workers of the pool, and packs those that are ready."""

    def __init__(self, setup: RunSetup, waker: Waker, workers: Mapping[int, Waker], start: None) -> None:
        super().__init__(setup, waker, workers, start)
        arena, plan, nobody = setup.arena, setup.plan, Waker()
        slots = TrajectorySlots(arena)
        slots.reset()
        self._record = slot_record(setup)
        self._ledger = PermitLedger(slots, plan, self._record.num_bytes)
        self._exchange = SlotExchange(
            ledger=self._ledger,
            ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
            granted=[IndexRing(arena, f"granted.{worker_idx}") for worker_idx in range(plan.num_workers)],
            workers=[workers.get(worker_idx, nobody) for worker_idx in range(plan.num_workers)],
            splits_per_worker=plan.worker_num_splits,
            worker_deaths=setup.worker_deaths,
        )

    @property
    def dropped_samples(self) -> int:
        return self._ledger.dropped_samples

    def serve(self, control: RunControl) -> None:
        self._exchange.serve(self._waker, control)

    def use(self, permits: Sequence[tuple[int, int]]) -> None:
        self._ledger.permits.extend(permits)
        self._waker.wake()

    def take(self, timeout_s: float) -> SentSlots | None:
        columns = self._exchange.take_dataset(0, timeout_s)
        if columns is None:
            return None
        slots = [part.slot for part in columns]
        content = np.empty((len(slots), self._record.num_bytes), np.uint8)
        for out, slot in zip(content, slots, strict=True):
            self._record.pack(slot, out)
        self._exchange.release(columns)
        return SentSlots(slots, content)
