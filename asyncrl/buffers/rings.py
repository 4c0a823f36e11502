"""Lock-free ring of integers from one producer to one consumer.

`tail` is written by the producer alone and `head` by the consumer alone; an item is written before the tail that
covers it. Each store is one aligned 8-byte write, and x86-64 keeps the order of stores, so the consumer never sees a
tail whose items are not there. A process killed at any instruction leaves the ring usable by the other side.
"""

from __future__ import annotations

from asyncrl.buffers.arena import Arena, ArraySpec


class IndexRing:
    """Integers in order, through the arena. Holds at most `capacity` of them."""

    def __init__(self, arena: Arena, name: str) -> None:
        """Views the ring `name` whose arrays `ring_specs` described."""
        self._items = arena.words(f"{name}.items")
        self._head = arena.words(f"{name}.head")
        self._tail = arena.words(f"{name}.tail")
        self._capacity = len(self._items)

    def push(self, item: int) -> None:
        """Appends an item (producer).

        Raises:
            OverflowError: the ring is full, which its capacity is chosen to exclude.
        """
        tail = self._tail[0]
        if tail - self._head[0] >= self._capacity:
            raise OverflowError(f"ring is full with {self._capacity} items")
        self._items[tail % self._capacity] = item
        self._tail[0] = tail + 1

    def pop_all(self) -> list[int]:
        """Takes all items that are there, oldest first (consumer)."""
        head, tail = self._head[0], self._tail[0]
        if head == tail:
            return []
        items = [self._items[position % self._capacity] for position in range(head, tail)]
        self._head[0] = tail
        return items


def ring_specs(name: str, capacity: int) -> list[ArraySpec]:
    """Arrays of a ring, each on cache lines of its own."""
    return [
        ArraySpec(f"{name}.items", "int64", (capacity,)),
        ArraySpec(f"{name}.head", "int64", (1,)),
        ArraySpec(f"{name}.tail", "int64", (1,)),
    ]
