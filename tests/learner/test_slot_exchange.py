"""Slots go from ring to ledger and back, and a thread that does it wakes the one that trains."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from small_runs import CountingWaker, fill, planned, small_arena

from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import SlotState
from asyncrl.learner.slot_ledger import SlotExchange, SlotLedger


class Exchange:
    """A real exchange over real rings: 2 workers with 2 splits of one environment each."""

    def __init__(self) -> None:
        plan = planned(
            batch_size=8, num_workers=2, num_envs_per_worker=2, worker_num_splits=2, inference_mode="central"
        )
        self.arena, self.slots = small_arena(plan)
        self.wakers = [CountingWaker(), CountingWaker()]
        self.ready = [IndexRing(self.arena, f"ready.{worker}") for worker in range(2)]
        self.granted = [IndexRing(self.arena, f"granted.{worker}") for worker in range(2)]
        self.ledger = SlotLedger(self.slots, plan)
        self.worker_deaths = WorkerDeaths(self.arena, has_server=False, has_slots=True)
        self.exchange = SlotExchange(
            self.ledger, self.ready, self.granted, self.wakers, splits_per_worker=2, worker_deaths=self.worker_deaths
        )

    def hand_over(self, worker: int, slot: int) -> None:
        fill(self.slots, slot)
        self.slots.finish(slot, self.slots.owner[slot])
        self.ready[worker].push(slot)


def test_slots_reach_the_worker_of_their_split_and_only_who_got_one_is_woken() -> None:
    run = Exchange()
    run.exchange.poll()
    grants = [ring.pop_all() for ring in run.granted]
    assert [[run.slots.owner[slot] // 2 for slot in slots] for slots in grants] == [[0, 0], [1, 1]]
    assert [waker.count for waker in run.wakers] == [1, 1]
    run.exchange.poll()
    run.hand_over(1, grants[1][0])
    run.exchange.poll()
    assert [len(ring.pop_all()) for ring in run.granted] == [0, 1]
    assert [waker.count for waker in run.wakers] == [1, 2]
    assert len(run.exchange.ready) == 1


def test_released_slots_are_granted_anew_at_once() -> None:
    run = Exchange()
    run.exchange.poll()
    # 8 slots: each split fills both that it may have before a dataset is trained.
    for _ in range(2):
        for worker, ring in enumerate(run.granted):
            for slot in ring.pop_all():
                run.hand_over(worker, slot)
        run.exchange.poll()
    assert [ring.pop_all() for ring in run.granted] == [[], []]
    columns = run.exchange.take_dataset(0, timeout_s=0.0)
    assert columns is not None
    run.exchange.release(columns)
    assert sorted(slot for ring in run.granted for slot in ring.pop_all()) == sorted(part.slot for part in columns)
    assert all(run.slots.state(part.slot) == SlotState.FILLING for part in columns)


def test_what_a_dead_worker_had_finished_is_kept_and_what_it_was_filling_begins_anew() -> None:
    run = Exchange()
    run.exchange.poll()
    (told, untold), others = run.granted[0].pop_all(), run.granted[1].pop_all()
    for slot in (told, untold):
        fill(run.slots, slot)
        run.slots.finish(slot, run.slots.owner[slot])
    run.ready[0].push(told)  # and dies before it tells of the other
    run.worker_deaths.announce(0)
    run.exchange.poll()
    assert run.worker_deaths.is_acknowledged(0)
    assert len(run.exchange.ready) == 2
    granted = run.granted[0].pop_all()
    assert len(granted) == 2, "one slot for each split of the worker that follows"
    run.slots.reward[granted[0], 0] = 1.0  # it dies, too, after one row
    run.slots.valid[granted[0]] = True
    run.worker_deaths.announce(0)
    run.exchange.poll()
    assert sorted(run.granted[0].pop_all()) == sorted(granted)
    assert np.isnan(run.slots.reward[granted]).all()
    assert run.exchange.dropped_samples == 1
    assert all(run.slots.state(slot) == SlotState.FILLING for slot in others)


@pytest.mark.usefixtures("leaves_nothing")
def test_the_trainer_is_woken_by_the_thread_that_exchanges_slots() -> None:
    run, waker = Exchange(), Waker()
    control = RunControl(run.arena, 2)
    exchanging = threading.Thread(target=run.exchange.serve, args=(waker, control))
    run.exchange.poll()
    slots = [(worker, slot) for worker, ring in enumerate(run.granted) for slot in ring.pop_all()]

    def hand_over_all() -> None:
        for worker, slot in slots:
            run.hand_over(worker, slot)
        waker.wake()

    collecting = threading.Timer(0.1, hand_over_all)  # by then the trainer waits
    exchanging.start()
    collecting.start()
    columns = None
    while columns is None:
        columns = run.exchange.take_dataset(0, timeout_s=1000.0)
    control.end()
    waker.wake()
    exchanging.join()
    collecting.join()
    waker.close()
    run.arena.close()
    assert {part.slot for part in columns} == {slot for _, slot in slots}


@pytest.mark.usefixtures("leaves_nothing")
def test_a_failure_of_the_exchanging_thread_reaches_the_trainer() -> None:
    run, waker = Exchange(), Waker()
    run.exchange.poll()
    run.ready[0].push(99)  # no such slot
    thread = threading.Thread(target=run.exchange.serve, args=(waker, RunControl(run.arena, 2)))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="receives slots failed") as caught:
        run.exchange.take_dataset(0, timeout_s=20.0)
    assert isinstance(caught.value.__cause__, IndexError)
    waker.close()
    run.arena.close()
