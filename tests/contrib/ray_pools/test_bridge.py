"""A bridge between an arena and a pool whose answers the test gives."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import BOX, CountingWaker, fill, planned, small_arena

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl, TrainingInfo
from asyncrl.buffers.messages import IndexRing
from asyncrl.buffers.replay import ReplayLimits
from asyncrl.buffers.slots import SlotState
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.batches import Batch, SentSlots
from asyncrl.contrib.ray_pools.bridge import CLOCK_S, ClockOffset, PoolBridge
from asyncrl.contrib.ray_pools.connection import NUM_REQUESTS
from asyncrl.contrib.ray_pools.sent_rows import RowReceiver
from asyncrl.contrib.ray_pools.sent_slots import SlotReceiver, slot_record
from asyncrl.learner.slot_ledger import SlotExchange, SlotLedger
from asyncrl.modes.choice import arena_specs
from asyncrl.processes.children import RunFailed
from asyncrl.run.setup import RunSetup

AHEAD_S = 1000.0
"""How far the clock of the pool's machine is ahead."""


class SilentPool:
    """Keeps the calls, and answers none by itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []

    def call(self, method: str, *args: Any) -> Future[Any]:
        self.calls.append((method, args, Future()))
        return self.calls[-1][2]

    def explain(self, error: Exception) -> RunFailed:
        return RunFailed(f"its actor has ended: {error}", is_death=True)

    def close(self) -> None:
        pass

    def open(self, method: str) -> list[tuple[tuple[Any, ...], Future[Any]]]:
        return [(args, future) for name, args, future in self.calls if name == method and not future.done()]

    def answer(self, method: str, number: int = 0, answer: Any = None) -> None:
        self.open(method)[number][1].set_result(time.monotonic() + AHEAD_S if answer is None else answer)


class Link:
    """The learner's side: a ledger that has granted what it can to two remote workers, and the bridge of both."""

    def __init__(self, before: Callable[[RunControl], None] = lambda control: None) -> None:
        """`before` is called while the bridge connects."""
        self.plan = planned(
            cluster="ray", num_workers_per_remote_host=2, num_envs_per_worker=1, batch_size=4, remote_slots_in_flight=1
        )
        self.arena, self.slots = small_arena(self.plan)
        self.setup = RunSetup(TrainConfig(cluster="ray"), self.plan, BOX, self.arena, Path(), None, 0)
        self.pool, self.learner, self.reports = SilentPool(), CountingWaker(), []
        before(self.setup.control)
        receiver = SlotReceiver(self.setup, range(2))
        wakers = CountingWaker(), self.learner
        self.bridge = PoolBridge(
            self.setup, range(2), receiver, self.pool, *wakers, self.reports.append, 60.0, silence_s=30.0
        )
        self.exchange = SlotExchange(
            SlotLedger(self.slots, self.plan),
            ready=[IndexRing(self.arena, f"ready.{worker_idx}") for worker_idx in range(2)],
            granted=[IndexRing(self.arena, f"granted.{worker_idx}") for worker_idx in range(2)],
            workers=[CountingWaker()] * 2,
            splits_per_worker=1,
            worker_deaths=self.setup.worker_deaths,
        )
        self.channel = WeightsChannel(self.arena)
        self.publish(1)
        self.exchange.poll()

    def publish(self, version: int) -> None:
        self.channel.publish(np.full(8, version, np.float32), version, 10 * version)

    def batch(self, number: int, slots: list[int], collected: int = 0, failure: RunFailed | None = None) -> Batch:
        """A batch of slots whose values are their numbers and whose actions were chosen a second ago."""
        other_arena, other = small_arena(self.plan)
        for slot in slots:
            fill(other, slot, version=1, value=float(slot))
            other.chosen_at[slot] = time.monotonic() + AHEAD_S - 1.0
        record = slot_record(dataclasses.replace(self.setup, arena=other_arena))
        content = np.empty((len(slots), record.num_bytes), np.uint8)
        for out, slot in zip(content, slots, strict=True):
            record.pack(slot, out)
        sent = SentSlots(slots, content) if slots else None
        return Batch(number, sent, {0: collected, 1: 0}, False, [f"report {number}"], failure)


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.arena.close()


def test_permits_name_the_weights_and_only_the_newest_weights_travel(link: Link) -> None:
    link.bridge.poll()
    ((number, permits, has_finished_episode), _), *others = link.pool.open("permit")
    assert (number, permits, has_finished_episode, others) == (1, [(0, 0), (1, 1)], False, [])
    for version in (2, 3):
        link.publish(version)
        link.bridge.poll()
    ((first, version, env_steps, block, _), _), *others = link.pool.open("publish")
    assert (first, version, env_steps, others) == (1, 1, 10, []), "the next ones wait until these have arrived"
    link.pool.answer("publish")
    link.setup.control.steps_by_time = 70
    link.bridge.poll()
    (((number, version, env_steps, block, steps_by_time), _),) = link.pool.open("publish")
    assert (number, version, env_steps, steps_by_time) == (3, 3, 30, 70), "schedules of the pool follow the clock here"
    assert (block == 3.0).all()


def test_a_slot_of_an_async_pool_waits_for_weights_that_were_sent_and_not_for_the_newest(link: Link) -> None:
    link.bridge.poll()
    link.publish(2)  # cannot be sent yet, because the first weights are under way
    link.pool.answer("take", 0, link.batch(0, [0, 1]))
    link.bridge.poll()
    link.exchange.poll()
    columns = link.exchange.take_dataset(1, 0.0)
    assert columns is not None
    link.exchange.release(columns)
    link.bridge.poll()
    assert [args[0] for args, _ in link.pool.open("permit")] == [1, 1]


@pytest.mark.parametrize(("async_rl", "named"), [(True, 1), (False, 2)], ids=["async", "sync"])
def test_permits_wait_for_the_newest_weights_in_sync_and_for_those_sent_in_async(async_rl: bool, named: int) -> None:
    plan = planned(algo="sac", cluster="ray", async_rl=async_rl, num_envs_per_worker=1, replay_size=100)
    arena = Arena.create(arena_specs(BOX, plan, 8))
    setup = RunSetup(TrainConfig(cluster="ray", algo="sac"), plan, BOX, arena, Path(), None, 0)
    channel, limits, pool = WeightsChannel(arena), ReplayLimits(arena), SilentPool()
    wakers = CountingWaker(), CountingWaker()
    bridge = PoolBridge(setup, range(1), RowReceiver(setup, range(1)), pool, *wakers, lambda report: None, 60.0)
    channel.publish(np.zeros(8, np.float32), 0, 0)
    bridge.poll()
    channel.publish(np.zeros(8, np.float32), 1, 0)  # cannot be sent yet, because the first weights are under way
    for limit in range(1, NUM_REQUESTS + 3):
        limits.set([limit], None)
        bridge.poll()
    calls = [args[:2] for args, _ in pool.open("permit")]
    assert calls == [(named, [(0, limit)]) for limit in range(1, NUM_REQUESTS + 1)], "so many calls at a time"
    pool.answer("permit")
    for _ in range(2):
        bridge.poll()
    assert pool.open("permit")[-1][0][1] == [(0, NUM_REQUESTS + 2)], "the newest limit only"
    arena.close()


def test_slots_are_written_finished_and_announced_in_the_order_of_the_pool(link: Link) -> None:
    link.bridge.poll()
    link.pool.answer("permit")
    link.bridge.poll()
    assert len(link.pool.open("take")) == NUM_REQUESTS
    link.pool.answer("take", 2, link.batch(1, [0], collected=7))
    link.bridge.poll()
    assert link.slots.state(0) == SlotState.FILLING, "the batch before it has not arrived"
    link.pool.answer("take", 0, link.batch(0, [1], collected=3))
    link.bridge.poll()
    assert [link.slots.state(slot) for slot in (0, 1)] == [SlotState.READY] * 2
    assert (link.slots.value[0] == 0.0).all() and (link.slots.value[1] == 1.0).all()
    age_s = time.monotonic() - link.slots.chosen_at[1]
    assert 0.9 < age_s.min() <= age_s.max() < 60.0, "times are those of this machine's clock"
    assert link.reports == ["report 0", "report 1"]
    assert RunControl(link.arena, 2).total_steps == 7, "counts of a worker are its totals"
    assert link.learner.count == 2
    link.exchange.poll()
    assert sorted(link.exchange.ready) == [0, 1]
    assert len(link.pool.open("take")) == NUM_REQUESTS


def test_a_slot_is_accepted_once(link: Link) -> None:
    link.bridge.poll()
    link.pool.answer("take", 0, link.batch(0, [0]))
    link.pool.answer("take", 0, link.batch(1, [0]))
    with pytest.raises(RuntimeError, match="READY, expected FILLING"):
        link.bridge.poll()


def test_a_pool_is_told_once_that_the_run_is_to_stop(link: Link) -> None:
    link.bridge.poll()
    assert not link.pool.open("request_stop")
    link.setup.control.request_stop()
    for _ in range(3):
        link.bridge.poll()
    assert len(link.pool.open("request_stop")) == 1


def test_steps_are_counted_before_what_they_became_is_written(link: Link) -> None:
    counted = []
    link.bridge._receiver.write = lambda payload, offset_s: counted.append(link.setup.control.collected_steps(0))
    link.bridge._unpack(link.batch(0, [0], collected=7))
    assert counted == [7]


def test_what_environments_are_told_is_passed_on_one_after_the_other(link: Link) -> None:
    link.setup.control.send_training_info(RunControl.pack_training_info(TrainingInfo({"level": 3}, 1)))
    link.bridge.poll()
    link.setup.control.send_training_info(RunControl.pack_training_info(TrainingInfo({"level": 4}, 2)))
    link.bridge.poll()
    (((info,), _),) = link.pool.open("set_training_info")
    assert info.of_observers == {"level": 3}
    link.pool.answer("set_training_info")
    for _ in range(2):
        link.bridge.poll()
    (((info,), _),) = link.pool.open("set_training_info")
    assert info.of_observers == {"level": 4}


def test_what_environments_were_told_while_the_pool_was_connected_is_passed_on() -> None:
    link = Link(
        lambda control: control.send_training_info(RunControl.pack_training_info(TrainingInfo({"level": 3}, 1)))
    )
    link.bridge.poll()
    (((info,), _),) = link.pool.open("set_training_info")
    assert info.of_observers == {"level": 3}
    link.arena.close()


def test_a_pool_knows_that_environments_of_others_have_finished_episodes(link: Link) -> None:
    link.setup.control.has_finished_episode = True
    link.bridge.poll()
    (((_, _, has_finished_episode), _),) = link.pool.open("permit")
    assert has_finished_episode


def test_the_failure_of_a_pool_and_its_end_are_told_apart(link: Link) -> None:
    link.bridge.poll()
    link.pool.answer("take", 0, link.batch(0, [], failure=RunFailed("rollout worker 0: no", is_final=True)))
    with pytest.raises(RunFailed, match="rollout worker 0: no") as failed:
        link.bridge.poll()
    assert failed.value.is_final and not failed.value.is_death
    link.pool.open("take")[0][1].set_exception(ConnectionError("gone"))
    with pytest.raises(RunFailed, match="its actor has ended: gone") as lost:
        link.bridge.poll()
    assert lost.value.is_death


def test_a_pool_that_does_not_start_or_falls_silent_is_given_up(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def pass_seconds(count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 1.0
            link.bridge.poll()

    pass_seconds(59)  # it has 60 s to start
    now += 1000.0  # this process is stopped
    with pytest.raises(RunFailed, match="not placed and started it within 60 s"):
        pass_seconds(3)
    link.pool.answer("permit")
    pass_seconds(29)
    with pytest.raises(RunFailed, match="has not answered for 31 s") as failed:
        pass_seconds(3)
    assert failed.value.is_death


def test_the_offset_of_a_clock_is_taken_from_the_quickest_answer() -> None:
    clock = ClockOffset()
    clock.record(0.0, 105.0, 9.0)
    assert clock.offset_s == 100.5
    clock.record(20.0, 120.1, 20.2)
    assert clock.offset_s == pytest.approx(100.0)
    clock.record(30.0, 139.0, 30.4)
    assert clock.offset_s == pytest.approx(100.0)
    clock.record(1000.0, 1107.0, 1002.0)
    assert clock.offset_s == pytest.approx(106.0), "an offset that was measured long ago counts no more"


def test_the_offset_of_clocks_that_drift_apart_follows() -> None:
    clock, drift = ClockOffset(), 0.001
    offsets = []
    for second in range(0, 200, 5):
        round_trip_s = 0.002 if second == 0 else 0.01  # the first answer is the quickest of all
        clock.record(second, 100.0 + second * (1.0 + drift), second + round_trip_s)
        offsets.append(clock.offset_s)
    errors = [abs(offset - 100.0 - drift * 5 * number) for number, offset in enumerate(offsets)]
    assert max(errors) < drift * 2 * CLOCK_S + 0.01
    assert offsets[1] == offsets[0], "the quickest answer counts for a while"
