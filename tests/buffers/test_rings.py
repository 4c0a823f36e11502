"""Integers from one producer to one consumer, in order."""

from __future__ import annotations

import time
from multiprocessing.context import BaseContext

import child_targets
import pytest

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.messages import IndexRing, ring_specs


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
def test_a_hundred_thousand_items_of_another_process_arrive_once_and_in_order(context: BaseContext) -> None:
    count = 100_000
    arena = Arena.create(ring_specs("ring", 61))
    consumer = IndexRing(arena, "ring")
    producer = context.Process(target=child_targets.produce, args=(arena, count), daemon=True)
    producer.start()
    expected = 0
    while expected < count:
        items = consumer.pop_all()
        assert items == list(range(expected, expected + len(items)))
        expected += len(items)
        if not items:
            assert producer.is_alive() or producer.exitcode == 0
            time.sleep(0)
    producer.join()
    assert consumer.pop_all() == []
    arena.close()
