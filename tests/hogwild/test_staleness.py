"""The staleness of updates is what it is called, its bound is kept exactly, and a dead worker blocks nobody."""

from __future__ import annotations

import json
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import pytest
import torch
from hogwild.shared import die_in_a_push, push_marks, shared_arena, wait_for_lock
from hogwild.test_actor_critic import PPO, SAC, Pair, first_actions

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import SharedTensor
from asyncrl.modes.hogwild.staleness import PushLock, StalenessMeter
from asyncrl.observers.reports import Staleness

pytestmark = pytest.mark.usefixtures("leaves_nothing")

NUM_WORKERS = 8


def pushed_by_all(
    context: BaseContext, arena: Arena, bound: int | None, folder: Path, num_pushes: int = 60
) -> list[tuple[list[int], list[int], int]]:
    """What each worker has marked, what its meter has measured, and how many of its pushes were computed again."""
    paths = [folder / f"{owner}.json" for owner in range(1, NUM_WORKERS + 1)]
    barrier = context.Barrier(NUM_WORKERS)
    processes = [
        context.Process(target=push_marks, args=(arena, owner, num_pushes, bound, path, barrier))
        for owner, path in enumerate(paths, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("bound", [4, None])
def test_no_push_of_eight_workers_has_missed_more_updates_than_the_bound(
    bound: int | None, context: BaseContext, tmp_path: Path
) -> None:
    arena = shared_arena(NUM_WORKERS, NUM_WORKERS)
    found = pushed_by_all(context, arena, bound, tmp_path)
    most = max(max(marks) for marks, *_ in found)
    if bound is None:
        assert most > 16 and max(max(measured) for _, measured, _ in found) > 16
    else:
        assert most <= bound
        assert all(sorted(marks) == measured for marks, measured, _ in found)
        assert sum(num_recomputed for *_, num_recomputed in found) > 0, "the bound was reached"
        assert SharedTensor(arena, "model").value.tolist() == [60.0] * NUM_WORKERS
    arena.close()


def test_a_worker_that_is_killed_while_it_pushes_blocks_nobody(context: BaseContext, tmp_path: Path) -> None:
    arena = shared_arena(NUM_WORKERS, NUM_WORKERS)
    dying = context.Process(target=die_in_a_push, args=(arena, 1))
    dying.start()
    dying.join()
    assert dying.exitcode == -9
    dying.close()
    found = pushed_by_all(context, arena, 0, tmp_path, num_pushes=5)
    assert all(marks == [0] * 5 for marks, *_ in found)
    arena.close()


def test_a_worker_that_waits_for_another_one_makes_turns_so_it_does_not_count_as_hung(context: BaseContext) -> None:
    arena = shared_arena(2)
    lock, turns = PushLock(arena, lambda: None), SharedTensor(arena, "model").steps
    lock.acquire()
    waiting = context.Process(target=wait_for_lock, args=(arena,))
    waiting.start()
    while turns[1] < 10:
        assert waiting.is_alive()
        time.sleep(0.01)
    assert turns[2] == 0
    lock.release()
    waiting.join()
    assert (waiting.exitcode, turns[2]) == (0, 1)
    waiting.close()
    arena.close()


A2C: dict[str, Any] = {"algo": "a2c"}


@pytest.mark.parametrize("settings", [A2C, PPO], ids=["a2c", "ppo"])
@pytest.mark.parametrize("mode", ["shared", "synced"])
@pytest.mark.parametrize(("bound", "expected"), [(None, {1: 1}), (1, {1: 1}), (0, {0: 1})])
def test_a_gradient_that_is_too_stale_is_computed_again_at_new_weights(
    settings: dict[str, Any], mode: str, bound: int | None, expected: dict[int, int]
) -> None:
    pair = Pair(**{**settings, "num_epochs": 1, "batch_size": 12}, hogwild_mode=mode, hogwild_max_staleness=bound)
    worker: Any = pair.workers[0]
    learner, weights = worker._learner, []
    take_step = learner._step

    def step_while_the_other_steps(*args: Any) -> Any:
        weights.append(learner._flat.data.clone())
        if len(weights) == 1:
            pair.workers[1].poll()
        return take_step(*args)

    learner._step = step_while_the_other_steps
    worker.poll()
    assert worker.report().staleness == Staleness(expected, num_recomputed=int(bound == 0))
    assert len(weights) == 1 + (bound == 0)
    if bound == 0:
        assert not weights[0].equal(weights[1])
    assert list(pair.shared.steps) == [0, 1, 1]
    assert not learner._meter._lock or not learner._meter._lock.is_held
    pair.close()


@pytest.mark.parametrize("settings", [A2C, PPO], ids=["a2c", "ppo"])
def test_a_gradient_that_would_be_too_stale_is_computed_once_with_the_lock(settings: dict[str, Any]) -> None:
    pair = Pair(**{**settings, "num_epochs": 1, "batch_size": 12}, hogwild_mode="synced", hogwild_max_staleness=0)
    worker: Any = pair.workers[0]
    learner, computed = worker._learner, []
    take_in, take_step = learner._update_statistics, learner._step

    def step_of_the_other_before_the_update(*args: Any) -> None:
        pair.workers[1].poll()
        take_in(*args)

    def looking_step(*args: Any) -> Any:
        computed.append((learner._flat.data.equal(torch.from_numpy(pair.shared.value)), learner._meter._lock.is_held))
        return take_step(*args)

    learner._update_statistics, learner._step = step_of_the_other_before_the_update, looking_step
    worker.poll()
    assert list(pair.shared.steps) == [0, 1, 1]
    assert worker.report().staleness == Staleness({0: 1}, num_recomputed=0)
    assert computed == [(True, True)], "once, at the newest weights"
    assert not learner._meter._lock.is_held
    pair.close()


def test_after_an_update_was_computed_twice_the_lock_is_taken_first_while_others_hold_it() -> None:
    arena, events, has_waited = shared_arena(2), list[str](), False
    shared = SharedTensor(arena, "model")
    lock: Any = PushLock(arena, lambda: None)
    acquire = lock.acquire

    def scripted_acquire() -> bool:
        if not lock.is_held:
            events.append("acquire")
        acquire()
        return has_waited

    lock.acquire = scripted_acquire
    meter = StalenessMeter(shared, owner=1, bound=0, lock=lock)

    def pull() -> None:
        events.append("pull")
        meter.record_pull(meter.num_by_others)

    def compute() -> None:
        events.append("compute")
        if not lock.is_held:
            shared.steps[2] += pushes_of_others
        meter.admit()

    def events_of_an_update() -> list[str]:
        events.clear()
        meter.update(compute, pull)
        assert not lock.is_held
        return list(events)

    first_the_lock = ["acquire", "pull", "compute"]
    pushes_of_others = 1
    assert events_of_an_update() == ["compute", "acquire", "pull", "compute"]
    has_waited = True
    assert events_of_an_update() == first_the_lock
    has_waited = False
    assert events_of_an_update() == first_the_lock
    pushes_of_others = 0
    assert events_of_an_update() == ["compute", "acquire"]
    assert meter.take() == Staleness({0: 4}, num_recomputed=1)
    arena.close()


def test_gradients_that_are_combined_have_the_age_of_their_publication() -> None:
    pair = Pair(hogwild_mode="gradients", num_gradients_to_combine=1)
    first, second = pair.workers
    first._learner.begin()
    for _ in range(2):
        second.poll()
        pair.server.train_once(0.0)
    first._learner.begin = lambda: None  # continues with what it has pulled
    statistics = first._learner._statistics
    statistics.published = {first._learner.policy_version: statistics.obs_statistics}
    first.poll()
    assert first.report().staleness == Staleness({2: 1})
    assert second.report().staleness == Staleness({0: 2})
    pair.close()


@pytest.mark.parametrize("mode", ["shared", "synced"])
@pytest.mark.parametrize("bound", [None, 0])
def test_an_update_of_sac_counts_once_and_is_computed_again_as_a_whole(mode: str, bound: int | None) -> None:
    pair = Pair(**{**SAC, "learning_rate": 0.01}, hogwild_mode=mode, hogwild_max_staleness=bound)
    worker, other = pair.workers
    for each in (worker, other):
        first_actions(each, 50)
    while worker._limiter.due == 0:
        worker.poll()
    worker.report()
    learner, is_first = worker._learner, True
    update, num_updates, computed = learner._update_once, worker._limiter.due, 0

    def update_while_the_other_updates(*args: Any) -> Any:
        nonlocal is_first, computed
        computed += 1
        if is_first:
            is_first = False
            before = pair.shared.steps[2]
            while pair.shared.steps[2] == before:
                other.poll()
        return update(*args)

    held_by_the_policy: list[bool] = []
    step_policy = learner._actor.step

    def looking_step(*args: Any) -> Any:
        held_by_the_policy.append(bound is not None and learner._meter._lock.is_held)
        return step_policy(*args)

    learner._actor.step = looking_step
    learner._update_once = update_while_the_other_updates
    others_before, actor = pair.shared.steps[2], SharedTensor(pair.setup.arena, "actor")
    actor_steps = actor.steps[1]
    worker.poll()
    num_by_other = pair.shared.steps[2] - others_before
    stale = {num_by_other: 1} if bound is None else {}
    fresh = {0: num_updates - len(stale)} if num_updates > len(stale) else {}
    assert worker.report().staleness == Staleness({**stale, **fresh}, num_recomputed=int(bound == 0))
    assert computed == num_updates + (bound == 0)
    assert actor.steps[1] - actor_steps == num_updates
    assert held_by_the_policy == [bound is not None] * num_updates, "nobody steps between critics and policy"
    pair.close()


def test_what_others_push_while_a_copy_is_made_counts() -> None:
    arena = shared_arena(2)
    shared = SharedTensor(arena, "model")
    meter = StalenessMeter(shared, owner=1)
    shared.steps[2] = 3
    with meter.pulling():
        shared.steps[2] += 1
    meter.update(meter.admit, lambda: None)
    assert meter.take() == Staleness({1: 1})
    arena.close()


def test_figures_of_staleness_are_those_of_all_updates() -> None:
    total = Staleness({0: 18, 3: 1}, 1) + Staleness({3: 0, 7: 1}, 1)
    assert total.scalars() == {
        "staleness_mean": pytest.approx(0.5),
        "staleness_p95": 3,
        "staleness_max": 7,
        "recomputed": pytest.approx(0.1),
    }
    assert Staleness().scalars() == {}
