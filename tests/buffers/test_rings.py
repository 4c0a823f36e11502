"""Integers from one producer to one consumer, in order."""

from __future__ import annotations

from multiprocessing.context import BaseContext

import arena_targets
import pytest

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.messages import IndexRing, Waker, ring_specs


def test_items_come_out_in_order_around_the_end_and_a_full_ring_refuses() -> None:
    arena = Arena.create(ring_specs("ring", 3))
    producer, consumer = IndexRing(arena, "ring"), IndexRing(arena, "ring")
    assert consumer.pop_all() == []
    producer.push(10)
    producer.push(11)
    assert consumer.pop_all() == [10, 11]
    for item in (12, 13, 14):
        producer.push(item)
    with pytest.raises(OverflowError, match="full with 3"):
        producer.push(15)
    assert consumer.pop_all() == [12, 13, 14]
    assert consumer.pop_all() == []


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    "count", [10_000, pytest.param(3_000_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_what_was_written_before_a_number_was_pushed_is_seen_when_it_is_popped(
    context: BaseContext, count: int
) -> None:
    num_slots = 5
    specs = [*ring_specs("granted", num_slots), *ring_specs("ready", num_slots)]
    arena = Arena.create([*specs, ArraySpec("payload", "int64", (num_slots, 512))])
    grants, ready, payload = IndexRing(arena, "granted"), IndexRing(arena, "ready"), arena.array("payload")
    granted, filled = Waker(), Waker()
    for slot in range(num_slots):
        grants.push(slot)
    granted.wake()
    child = context.Process(target=arena_targets.fill_slots, args=(arena, count, granted, filled), daemon=True)
    child.start()
    expected, num_granted = 0, num_slots
    while expected < count:
        assert filled.wait(30.0) or child.is_alive()
        for slot in ready.pop_all():
            assert (payload[slot] == expected).all(), "it is whole, and none was lost or came twice"
            expected += 1
            if num_granted < count:
                grants.push(slot)
                num_granted += 1
        granted.wake()
    child.join(30.0)
    assert child.exitcode == 0
    arena.close()
    granted.close()
    filled.close()
