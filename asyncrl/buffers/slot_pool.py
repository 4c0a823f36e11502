"""The slots of one split, where several policies play: they stay with the split, and no learner grants them.

    free --refill (worker)--> being filled --finish, announce (worker)--> complete --taken (every learner)--> free

Each policy's learner copies the rows of its policy out of a complete slot, and then stores `filled[s]` in its own word
`taken[s]`. A slot is free when all policies have taken its newest contents. In sync mode a learner does this after it
has trained and published, so no worker collects with older weights.

`filled` and `taken` are authoritative, rings are hints: a learner ignores the number of a slot that it has taken. The
successor of a worker that died takes over from these words alone. Complete slots that some policy has not taken are
announced to it again. A slot that was being filled counts as free, because `filled` changes last; it is emptied before
it is filled again.
"""

from __future__ import annotations

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.layout import policy_prefix
from asyncrl.buffers.messages import IndexRing
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.config.plan import ResourcePlan


class SlotPool:
    """The slots of split `split_idx`, for its worker, which is the producer of the rings `ready`."""

    def __init__(self, arena: Arena, slots: TrajectorySlots, plan: ResourcePlan, split_idx: int) -> None:
        assert slots.filled is not None
        worker_idx = split_idx // plan.worker_num_splits
        prefixes = [policy_prefix(policy_idx) for policy_idx in range(plan.num_policies)]
        if plan.num_policies == 1:
            prefixes = [""]
        self._first = split_idx * plan.slots_per_split
        self._size = plan.slots_per_split
        self._next = 0
        self._filled = slots.filled
        self._taken = [arena.words(f"{prefix}taken") for prefix in prefixes]
        self._ready = [IndexRing(arena, f"{prefix}ready.{worker_idx}") for prefix in prefixes]

    def find_free(self) -> int | None:
        """The next slot that no policy needs any more, in turn; None if there is none."""
        for position in range(self._next, self._next + self._size):
            slot = self._first + position % self._size
            if all(taken[slot] == self._filled[slot] for taken in self._taken):
                self._next = (position + 1) % self._size
                return slot
        return None

    def announce(self, slot: int) -> None:
        """Pushes the number of a complete slot to every policy's learner."""
        for ring in self._ready:
            ring.push(slot)

    def announce_again(self) -> bool:
        """Announces what a worker before this one has completed, unless it did; returns whether there was any."""
        slots = range(self._first, self._first + self._size)
        missing = [
            (ring, slot)
            for ring, taken in zip(self._ready, self._taken, strict=True)
            for slot in slots
            if taken[slot] != self._filled[slot] and not ring.may_hold(slot)
        ]
        for ring, slot in missing:
            ring.push(slot)
        return len(missing) > 0
