"""Filled slots become datasets of one policy, and their workers learn when they may fill them again."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from policy_slots import T, empty_slots
from small_runs import CountingWaker

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.control import RunControl, control_specs
from asyncrl.buffers.messages import IndexRing, Waker, ring_specs
from asyncrl.learner.policy_rows import PolicyRows
from asyncrl.learner.policy_source import PolicySource

NUM_SLOTS = 4


class Run:
    """2 workers with 2 slots of 2 columns each; policy 0 plays everything, and a dataset has 3 columns."""

    def __init__(self, is_async: bool = True) -> None:
        specs = [ArraySpec(name, "int64", (NUM_SLOTS,)) for name in ("filled", "taken")]
        rings = [spec for worker in range(2) for spec in ring_specs(f"ready.{worker}", 8)]
        self.arena = Arena.create([*specs, *rings, *control_specs()])
        self.filled, self.taken = self.arena.words("filled"), self.arena.words("taken")
        self.ready = [IndexRing(self.arena, f"ready.{worker}") for worker in range(2)]
        self.wakers = [CountingWaker(), CountingWaker()]
        self.slots = empty_slots(NUM_SLOTS, 2)
        self.slots.valid[:] = True
        rows = PolicyRows(0, self.slots, 3 if is_async else None, 1, None, max_policy_lag=10)
        self.source = PolicySource(rows, self.filled, self.taken, self.ready, self.wakers, 2, is_async)
        self.num_filled = 0

    def fill(self, slot: int) -> int:
        """Fills a slot as a worker does, which waits until it may; the reward of all rows is the number returned."""
        assert self.taken[slot] == self.filled[slot]
        self.num_filled += 1
        self.slots.reward[slot] = self.num_filled
        self.filled[slot] += 1
        self.ready[slot // 2].push(slot)
        return self.num_filled

    def train(self) -> list[int]:
        """The rewards of the columns of the next dataset, which is released; none if it is not complete."""
        columns = self.source.take_dataset(0, timeout_s=0.0)
        if columns is None:
            return []
        rewards = self.source.collect(columns).reward[0].int().tolist()
        self.source.release(columns)
        return rewards


def test_slots_are_copied_in_the_order_of_their_numbers_in_the_rings_and_are_free_at_once() -> None:
    run = Run()
    for slot in (1, 0):
        run.fill(slot)
    run.source.poll()
    assert list(run.taken) == [1, 1, 0, 0]
    assert [waker.count for waker in run.wakers] == [1, 0]
    run.fill(3)
    run.fill(1)
    run.source.poll()
    assert list(run.taken) == [1, 2, 0, 1]
    assert [waker.count for waker in run.wakers] == [2, 1]
    assert run.train() == [1, 1, 2]
    assert run.train() == [2, 4, 4]
    assert run.train() == []


def test_a_slot_that_comes_while_the_memory_is_full_is_copied_when_a_dataset_was_trained_on() -> None:
    run = Run()
    rows = run.source._rows
    num_slots = len(rows._staging) * 3 // 2
    order = [run.fill(slot % NUM_SLOTS) for slot in range(num_slots) if run.source.poll() is None]
    run.source.poll()
    assert len(run.source.ready) == 0
    columns = run.source.take_dataset(0, timeout_s=0.0)
    assert columns is not None
    dataset = run.source.collect(columns)
    before = dataset.reward.clone()
    order += [run.fill(slot % NUM_SLOTS) for slot in range(num_slots, num_slots + 2)]
    run.source.poll()
    late = num_slots % NUM_SLOTS
    assert len(run.source.ready) == 2
    assert run.taken[late] < run.filled[late], "its contents are needed"
    assert bool((dataset.reward == before).all())
    woken = sum(waker.count for waker in run.wakers)
    run.source.release(columns)
    assert len(run.source.ready) == 1, "there is room for one and a half"
    assert run.taken[late] == run.filled[late]
    assert sum(waker.count for waker in run.wakers) == woken + 1
    trained = before[0].int().tolist()
    while rewards := run.train():
        trained += rewards
    assert trained == [number for number in order for _ in range(2)][: len(trained)]
    assert len(trained) > 2 * num_slots


def test_a_slot_that_is_announced_twice_is_copied_once() -> None:
    run = Run()
    run.fill(0)
    run.ready[0].push(0)
    run.ready[0].push(1)  # never filled
    run.source.poll()
    run.ready[0].push(0)
    run.source.poll()
    assert list(run.taken) == [1, 0, 0, 0]
    run.fill(2)
    run.source.poll()
    assert run.train() == [1, 1, 2]
    assert run.train() == []


def test_an_iteration_in_sync_is_all_slots_and_frees_them_together_after_training() -> None:
    run = Run(is_async=False)
    for iteration in range(1, 4):
        numbers = []
        for slot in (2, 0, 3):
            numbers.append(run.fill(slot))
            run.ready[0].push(slot)
            run.source.poll()
            assert run.source.take_dataset(0, timeout_s=0.0) is None
        numbers.append(run.fill(1))
        run.source.poll()
        columns = run.source.take_dataset(0, timeout_s=0.0)
        assert columns is not None
        dataset = run.source.collect(columns)
        assert dataset.reward[T - 1].int().tolist() == [number for number in numbers for _ in range(2)]
        run.source.poll()
        assert list(run.taken) == [iteration - 1] * NUM_SLOTS, "no worker may continue before the weights are published"
        assert [waker.count for waker in run.wakers] == [iteration - 1] * 2
        run.source.release(columns)
        assert list(run.taken) == [iteration] * NUM_SLOTS
        assert [waker.count for waker in run.wakers] == [iteration] * 2
        assert run.train() == []


def test_an_iteration_without_rows_of_the_policy_is_an_empty_dataset() -> None:
    run = Run(is_async=False)
    run.slots.policy_idx[:] = 1
    for slot in range(NUM_SLOTS):
        run.fill(slot)
    run.source.poll()
    columns = run.source.take_dataset(0, timeout_s=0.0)
    assert columns is not None
    dataset = run.source.collect(columns)
    assert (dataset.num_valid, dataset.num_env_steps) == (0, 0)
    run.source.release(columns)
    assert list(run.taken) == [1] * NUM_SLOTS


@pytest.mark.usefixtures("leaves_nothing")
def test_the_trainer_is_woken_by_the_thread_that_copies() -> None:
    run, waker = Run(), Waker()
    control = RunControl(run.arena, 0)

    def fill_some() -> None:
        run.fill(0)
        run.fill(2)
        waker.wake()

    copying = threading.Thread(target=run.source.serve, args=(waker, control))
    collecting = threading.Timer(0.1, fill_some)  # by then the trainer waits
    copying.start()
    collecting.start()
    columns = None
    while columns is None:
        columns = run.source.take_dataset(0, timeout_s=1000.0)
    control.end()
    waker.wake()
    copying.join()
    collecting.join()
    waker.close()
    run.arena.close()
    assert np.isin(run.source.collect(columns).reward.numpy(), (1.0, 2.0)).all()
