"""How processes notify each other of work: rings of numbers, wake-ups, and requests for actions.

**Rings.** A lock-free ring of integers has one producer and one consumer. Only the producer writes `tail`, only the
consumer writes `head`, and an item is written before the tail that covers it. Each store is one aligned 8-byte write in
the order of `asyncrl.buffers.words`, so the consumer never sees a tail whose items are missing. A process killed at any
instruction leaves the ring usable by the other side.

**Wake-ups.** Each consumer has one eventfd (elsewhere a pipe), made before any process starts, so a restarted process
needs nothing from the others. A wake-up is a hint: it is sent after the data was written, and a waiting process checks
its rings when it is woken and after its timeout.

**Requests.** A request names the slot and row for which a split waits for actions. The worker writes slot and row, then
the request's number; the server writes the actions into the slot, then the same number as the answer's. A request is
open while the answer's number is smaller. So after any death both sides know from these words alone which requests are
open, and no request is answered twice.
"""

from __future__ import annotations

import os
import select
from multiprocessing import reduction
from typing import Any

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.host import open_wakeup


class IndexRing:
    """A queue of at most `capacity` integers in the arena, see `ring_specs`."""

    def __init__(self, arena: Arena, name: str) -> None:
        self._items = arena.words(f"{name}.items")
        self._head = arena.words(f"{name}.head")
        self._tail = arena.words(f"{name}.tail")
        self._capacity = len(self._items)

    def push(self, item: int) -> None:
        """Appends an item (producer).

        Raises:
            OverflowError: the ring is full; capacities are chosen so that this cannot happen.
        """
        tail = self._tail[0]
        if tail - self._head[0] >= self._capacity:
            raise OverflowError(f"ring is full with {self._capacity} items")
        self._items[tail % self._capacity] = item
        self._tail[0] = tail + 1

    def may_hold(self, item: int) -> bool:
        """Whether an item is in the ring, or the consumer has just taken it (producer)."""
        return any(self._items[at % self._capacity] == item for at in range(self._head[0], self._tail[0]))

    def pop_all(self) -> list[int]:
        """Removes and returns all items, oldest first (consumer)."""
        head, tail = self._head[0], self._tail[0]
        if head == tail:
            return []
        items = [self._items[position % self._capacity] for position in range(head, tail)]
        self._head[0] = tail
        return items


def ring_specs(name: str, capacity: int) -> list[ArraySpec]:
    """Arrays of a ring, each on separate cache lines."""
    return [
        ArraySpec(f"{name}.items", "int64", (capacity,)),
        ArraySpec(f"{name}.head", "int64", (1,)),
        ArraySpec(f"{name}.tail", "int64", (1,)),
    ]


_MOST_FOR_SELECT = 1024
"""`select` takes only smaller descriptors; `poll` takes all, and whole milliseconds."""


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether a descriptor can be read, or becomes so within the timeout."""
    if descriptor < _MOST_FOR_SELECT:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000.0 * timeout_s))


class Waker:
    """Wakes the one process that waits on it; any number of processes may send."""

    def __init__(self, read_fd: int | None = None, write_fd: int | None = None) -> None:
        """Makes a new waker; only the copy in a child process is given descriptors."""
        if read_fd is None or write_fd is None:
            read_fd, write_fd = open_wakeup()
        self._read_fd = read_fd
        self._write_fd = write_fd

    def wake(self) -> None:
        """Ends the current or the next `wait` of the consumer."""
        try:
            os.write(self._write_fd, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return  # as many wake-ups as fit are pending: the consumer wakes anyway

    def wait(self, timeout_s: float) -> bool:
        """Waits until woken or until the timeout; takes all pending wake-ups. Returns whether it was woken."""
        if not _is_readable(self._read_fd, timeout_s):
            return False
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._read_fd)
        if self._write_fd != self._read_fd:
            os.close(self._write_fd)

    def __reduce__(self) -> tuple[Any, ...]:
        read = reduction.DupFd(self._read_fd)
        write = read if self._write_fd == self._read_fd else reduction.DupFd(self._write_fd)
        return _rebuild_waker, (read, write)


def _rebuild_waker(read: Any, write: Any) -> Waker:
    read_fd = read.detach()
    return Waker(read_fd, read_fd if write is read else write.detach())


class RequestTable:
    """One request at a time for each split."""

    def __init__(self, arena: Arena) -> None:
        self._request_seq = arena.words("splits.request_seq")
        self._response_seq = arena.words("splits.response_seq")
        self._slot = arena.words("splits.request_slot")
        self._row = arena.words("splits.request_row")

    def is_open(self, split_idx: int) -> bool:
        """Whether the split waits for an answer."""
        return bool(self._response_seq[split_idx] < self._request_seq[split_idx])

    def ask(self, split_idx: int, slot: int, row: int) -> None:
        """Asks for actions on a row whose observations are written (worker)."""
        if self.is_open(split_idx):
            raise RuntimeError(f"split {split_idx} asked again before it was answered")
        self._slot[split_idx] = slot
        self._row[split_idx] = row
        self._request_seq[split_idx] += 1

    def open_request(self, split_idx: int) -> tuple[int, int] | None:
        """Slot and row of the split's open request, None if there is none (server)."""
        if not self.is_open(split_idx):
            return None
        return int(self._slot[split_idx]), int(self._row[split_idx])

    def answer(self, split_idx: int) -> None:
        """Closes the request, if one is open: the actions are written, or the split's worker has died (server)."""
        self._response_seq[split_idx] = self._request_seq[split_idx]
