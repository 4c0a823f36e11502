"""Whoever dies, at whichever write: no slot is lost, nothing goes across the gap, and no action serves twice.

Rollout workers, an inference worker and the learner's exchange of slots take turns in one process, over one arena. Of
those that are to die every word is counted, and a write later it is as if they had been killed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from mortal_arena import VICTIM, Life, MortalArena, MortalRun
from small_runs import BOX, CountingWaker, planned, small_arena

from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.buffers.slots import SlotState, TrajectorySlots
from asyncrl.learner.slot_ledger import SlotExchange, SlotLedger
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.sinks import GrantedSlots, SlotSink
from asyncrl.rollout.worker import RemoteActions, RolloutWorker, Split

NUM_WORKERS, SPLITS, ROLLOUT = 2, 2, 2
NUM_DATASETS = 3

in_both_timings = pytest.mark.parametrize("async_rl", [False, True], ids=["sync", "async"])


class Odometer(gymnasium.Env[Any, Any]):
    """Observes [which environment this is, its steps so far]; the reward is the step."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self._number = next(self.numbers)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self._number, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.array([self._number, self._steps]), float(self._steps), False, False, {}


class NumberingPolicy:
    """Gives every request actions that no other request gets."""

    def __init__(self, slots: TrajectorySlots) -> None:
        self._slots = slots
        self._numbers = itertools.count(1)
        self.num_answers = 0

    def refresh(self) -> None: ...

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        assert len(set(places)) == len(places)
        for slot, row in places:
            self.num_answers += 1
            assert self._slots.state(slot) == SlotState.FILLING
            self._slots.value[slot, row] = 0.0
            if row < ROLLOUT:
                self._slots.action[slot, row] = next(self._numbers)
                self._slots.log_prob[slot, row] = 0.0


class Run(MortalRun):
    """Two workers of two splits, their inference worker, and the learner's exchange; the victims die early."""

    def __init__(self, async_rl: bool, worker_life: float = np.inf, server_life: float = np.inf) -> None:
        sizes = {"rollout": ROLLOUT, "batch_size": 16, "num_workers": NUM_WORKERS, "num_envs_per_worker": 2}
        plan = planned(async_rl=async_rl, worker_num_splits=SPLITS, inference_mode="central", **sizes)
        arena, self.slots = small_arena(plan)
        super().__init__(plan, arena, NumberingPolicy(self.slots), True, worker_life, server_life)
        self.table = RequestTable(arena)
        self.ledger = SlotLedger(self.slots, plan)
        ready, granted = (
            [IndexRing(arena, f"{name}.{worker}") for worker in range(NUM_WORKERS)] for name in ("ready", "granted")
        )
        wakers = [CountingWaker()] * NUM_WORKERS
        self.exchange = SlotExchange(self.ledger, ready, granted, wakers, SPLITS, self.worker_deaths)

    def new_worker(self, worker_idx: int, life: Life) -> RolloutWorker:
        arena: Any = MortalArena(self.arena, life)
        slots = TrajectorySlots(arena)
        actions = RemoteActions(RequestTable(arena), IndexRing(arena, f"requests.{worker_idx}"), CountingWaker())
        granted, ready = IndexRing(arena, f"granted.{worker_idx}"), IndexRing(arena, f"ready.{worker_idx}")
        source = GrantedSlots(slots, granted, ready, CountingWaker())
        splits = []
        for split_idx in range(worker_idx * SPLITS, (worker_idx + 1) * SPLITS):
            group = EnvGroup([Odometer()], [0], split_idx, BOX, "raw")
            splits.append(Split(split_idx, group, SlotSink(split_idx, group, slots, source), actions))
        return RolloutWorker(worker_idx, splits, RunControl(arena, NUM_WORKERS))

    def turn(self) -> None:
        self.exchange.poll()
        self.let_roles_act()

    def trained(self) -> list[dict[str, np.ndarray]]:
        """The columns of the first datasets, in their order."""
        columns = []
        for _ in range(NUM_DATASETS):
            taken = None
            for _ in range(200):
                self.turn()
                taken = self.exchange.take_dataset(0, timeout_s=0.0)
                if taken is not None:
                    break
            assert taken is not None, "the run hangs"
            for part in taken:
                fields = ("obs", "action", "reward", "valid")
                columns.append({name: getattr(self.slots, name)[part.slot, :, 0].copy() for name in fields})
            self.exchange.release(taken)
        return columns


def check(run: Run, columns: list[dict[str, np.ndarray]]) -> None:
    """Every environment's rows follow one another without a gap, and no action was used twice."""
    steps: dict[float, int] = {}
    actions = [float(action) for column in columns for action in column["action"][:, 0]]
    assert len(set(actions)) == len(actions)
    for column in columns:
        number = column["obs"][0, 0]
        first = steps.get(number, 0)
        steps[number] = first + ROLLOUT
        np.testing.assert_array_equal(column["obs"][:, 0], number)
        np.testing.assert_array_equal(column["obs"][:, 1], np.arange(first, first + ROLLOUT + 1))
        np.testing.assert_array_equal(column["reward"], np.arange(first, first + ROLLOUT) + 1)
    for _ in range(40):  # while nobody trains all slots fill up
        run.turn()
    assert [run.slots.state(slot) for slot in range(run.slots.num_slots)] == [SlotState.READY] * run.slots.num_slots
    assert len(run.ledger.ready) == run.slots.num_slots
    run.arena.close()


@in_both_timings
def test_a_worker_may_die_at_any_write(async_rl: bool) -> None:
    num_dropped = set()
    for num_writes in itertools.count():
        run = Run(async_rl, worker_life=num_writes)
        check(run, run.trained())
        num_dropped.add(run.exchange.dropped_samples)
        if not run.has_worker_died:
            break
    assert num_writes > 100
    assert num_dropped == {0, 1, 2, 3, 4}, "of each split what its slot held, up to two rows"


@in_both_timings
def test_an_inference_worker_may_die_at_any_write(async_rl: bool) -> None:
    for num_writes in itertools.count():
        run = Run(async_rl, server_life=num_writes)
        check(run, run.trained())
        assert run.exchange.dropped_samples == 0
        if not run.has_server_died:
            break
    assert num_writes > 50


@in_both_timings
def test_worker_and_inference_worker_may_die_together(async_rl: bool) -> None:
    for worker_life, server_life in itertools.product(range(0, 60, 4), range(0, 30, 4)):
        run = Run(async_rl, worker_life=worker_life, server_life=server_life)
        check(run, run.trained())
        assert run.has_worker_died and run.has_server_died


def test_a_dead_worker_is_replaced_after_inference_worker_and_learner_have_released_its_slots() -> None:
    run = Run(async_rl=True)
    run.exchange.poll()
    run.workers[VICTIM].poll()  # both splits have asked
    worker_deaths = run.worker_deaths
    worker_deaths.announce(VICTIM)
    run.exchange.poll()
    assert not worker_deaths.is_acknowledged(VICTIM), (
        "the learner waits for the inference worker, which may still be writing"
    )
    assert worker_deaths.pending_for_learner() == []
    run.server.poll()
    assert not any(run.table.is_open(split_idx) for split_idx in range(SPLITS))
    assert worker_deaths.pending_for_learner() == [VICTIM]
    run.exchange.poll()
    assert worker_deaths.is_acknowledged(VICTIM)


def test_a_replay_without_inference_workers_replaces_a_dead_worker_at_once() -> None:
    arena = Run(async_rl=True).arena
    of_replay = WorkerDeaths(arena, has_server=False, has_slots=False)
    of_replay.announce(1)
    assert of_replay.is_acknowledged(1)
    assert not WorkerDeaths(arena, has_server=True, has_slots=False).is_acknowledged(1)
    assert not WorkerDeaths(arena, has_server=False, has_slots=True).is_acknowledged(1)
