"""Rows of a replay that pools write: each arrives once, whatever dies, and pools wait for the learner as others do."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from contrib.ray_pools.pool_game import Game, TestPool
from replays import check_one_step, new_replay
from small_runs import BOX, planned

from asyncrl.buffers.arena import Arena
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools import sent_rows
from asyncrl.contrib.ray_pools.limiter import LOST_AFTER_S
from asyncrl.contrib.ray_pools.sent_rows import RowCodec, RowReceiver, pool_specs
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.modes.choice import arena_specs
from asyncrl.run.setup import RunSetup


def steps_of(game: Game) -> list[tuple[int, ...]]:
    """Split, environment, episode and step of each step in the learner's replay."""
    stripes = game.stripes
    found: list[tuple[int, ...]] = []
    for split in range(stripes.num_splits):
        num_rows = stripes.num_rows[split]
        assert num_rows < stripes.capacity, "the replay is large enough for all rows"
        found += map(tuple, stripes.obs[split, :num_rows][stripes.valid[split, :num_rows]].astype(int).tolist())
    return found


def check_transitions(game: Game) -> None:
    """Fails unless everything that may be drawn is a step that a writer made, with what followed it."""
    sampler = ReplaySampler(game.stripes, 1, 0.5, 1.0, None, seed=3)
    for batch in sampler.sample(8, 2000):
        check_one_step(batch, 0.5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_each_row_arrives_once_and_none_goes_across_a_death(seed: int, is_async: bool) -> None:
    chance = random.Random(seed)
    game = Game(0.25, num_local=1, pools=[2, 1], num_envs=2, warmup=20, is_async=is_async, num_rows=3000)
    lost, num_dead_pools = 0, 0
    speeds = [0.3 + 0.7 * chance.random() for _ in range(4)]
    while game.stripes.total_env_steps() < 2000:
        game.move_all(chance, speeds)
        if game.num_lives < 25 and chance.random() < 0.03:
            if chance.random() < 0.5:
                game.kill_worker(chance)
            else:
                lost += game.kill_pool(chance.randrange(2))
                num_dead_pools += 1
    for pool in game.pools:  # what is under way arrives
        for _ in range(3):
            pool.move()
    steps = steps_of(game)
    assert len(set(steps)) == len(steps), "no step is there twice"
    assert len(steps) == game.stripes.total_env_steps() == game.num_made - lost, "none is lost but with a pool"
    assert num_dead_pools > 3
    assert lost <= num_dead_pools * 2 * game.num_envs * (game.rows_in_flight + 1)
    check_transitions(game)


def test_a_step_that_is_lost_ends_the_episode_in_a_row_that_has_left_before() -> None:
    game = Game(1.0, num_local=0, pools=[1], num_envs=2, warmup=1000)
    (pool,) = game.pools
    for _ in range(3):
        pool.move()
    assert pool.step(0)
    for _ in range(2):
        pool.move()
    pool.stripes.truncated[0, 0] = False
    game.stripes.truncated[0, 0] = False
    pool.stripes.rows(0, 0).truncated[1] = True  # as `StripeSink` does while it writes row 1
    assert pool.step(0)
    for _ in range(2):
        pool.move()
    assert game.stripes.num_rows[0] == 2
    assert game.stripes.truncated[0, 0].tolist() == [False, True]


def test_a_row_that_is_not_the_next_one_is_refused() -> None:
    game = Game(1.0, num_local=0, pools=[1], num_envs=2, warmup=1000)
    (pool,) = game.pools
    for _ in range(3):
        pool.move()
    pool.step(0)
    pool.move()
    (sent,) = pool.to_learner
    pool.receiver.write(sent, 0.0)
    with pytest.raises(RuntimeError, match="row 0 of split 0 came, but 1 is the next"):
        pool.receiver.write(sent, 0.0)


def test_each_observation_travels_once_and_a_batch_has_at_most_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game(1.0, num_local=0, pools=[1], num_envs=2, warmup=1000, rows_in_flight=9)
    row_bytes = RowCodec(game.pools[0].setup).row_bytes
    # Of 2 environments: flags of the row before, an action of 8 bytes, reward, three flags, four float32; a version.
    assert row_bytes == 2 * (1 + 8 + 4 + 3 + 16) + 4
    monkeypatch.setattr(sent_rows, "BATCH_BYTES", 4 * row_bytes)
    (pool,) = game.pools = [TestPool(game, [0], 1, is_restarted=False)]
    pool.sender.record_publication(1)
    for _ in range(2):
        pool.move()
    assert sum(pool.step(0) for _ in range(20)) == 9, "more are not permitted before some have arrived"
    sent = [pool.sender.take(0.0) for _ in range(4)]
    assert [each and each.rows for each in sent] == [
        [(0, row) for row in range(start, min(9, start + 4))] for start in (0, 4, 8)
    ] + [None]
    assert [len(each.first_obs) for each in sent if each] == [1, 0, 0]
    assert [each.num_bytes for each in sent if each] == [4 * row_bytes + 32, 4 * row_bytes, row_bytes]


def test_every_field_of_a_step_arrives_and_priorities_stay_with_the_learner() -> None:
    plan = planned(algo="dqn", cluster="ray", num_remote_hosts=2, prioritized_replay=True, remote_rows_in_flight=5)
    specs = arena_specs(BOX, plan, 8)
    of_pool = {spec.name: spec.shape for spec in pool_specs(specs, plan)}
    names = {spec.name for spec in specs if spec.name.startswith("replay.") and len(spec.shape) > 1}
    travel = {f"replay.{name}" for name in ("obs", *sent_rows.FIELDS)}
    assert names - travel == {"replay.priority"} == {spec.name for spec in specs} - of_pool.keys()
    assert {of_pool[name][1] for name in travel} == {9}, "stripes of a pool are short"
    there, here = Arena.create(pool_specs(specs, plan)), Arena.create(specs)
    random_numbers = np.random.default_rng(4)
    for name in travel:
        array = there.array(name)
        array[...] = random_numbers.integers(0, 2, array.shape) if array.dtype == bool else 7.25
    before = here.array("replay.obs").copy()
    config = TrainConfig(cluster="ray")
    sent, received = (RunSetup(config, plan, BOX, arena, Path(), None, 0) for arena in (there, here))
    RowCodec(received).unpack(RowCodec(sent).pack([(1, 12)])[0], 1, 12)
    for name in travel - {"replay.obs"}:
        np.testing.assert_array_equal(here.array(name)[1, 12], there.array(name)[1, 3], name)
    assert (here.array("replay.obs")[1, 13] == 7.25).all(), "the observation after the step"
    before[1, 13] = 7.25
    np.testing.assert_array_equal(here.array("replay.obs"), before, "nothing else was written")
    np.testing.assert_array_equal(here.array("replay.truncated")[1, 11], there.array("replay.truncated")[1, 2])


@pytest.mark.parametrize("num_local", [0, 2])
def test_pools_never_make_more_steps_than_the_updates_allow(num_local: int) -> None:
    ratio, chance = Fraction("0.7"), random.Random(2)
    game = Game(0.7, num_local, [1, 2], num_envs=2, warmup=50, tolerance=5.0, rows_in_flight=12)
    num_splits = num_local + 3
    slack = ratio * 2 * game.num_envs * num_splits + 1 + 5 + ratio * 3 * game.rows_in_flight * game.num_envs
    for _ in range(3000):
        game.move_all(chance, [0.8] * num_splits, learner_speed=0.1)
        behind = ratio * (game.num_made - 50) - game.limiter.num_updates
        assert behind <= slack + 1 + ratio * game.num_envs * max(1, num_local), "steps under way are counted"
    assert game.limiter.num_updates > 1000
    rows = [game.stripes.num_rows[split] for split in range(num_splits)]
    assert max(rows) < 1.2 * min(rows), "where all wait for the learner they get equal shares"


@pytest.mark.parametrize("seed", range(6))
def test_somebody_can_always_go_on_while_a_pool_is_gone(seed: int) -> None:
    chance = random.Random(seed)
    game = Game(
        ratio=chance.choice([0.01, 0.3, 1.0, 16.0]),
        num_local=chance.randint(0, 2),
        pools=[1, chance.randint(1, 2)],
        num_envs=chance.randint(1, 3),
        warmup=chance.choice([1, 10, 333]),
        tolerance=chance.choice([0.0, 64.0]),
        rows_in_flight=chance.choice([1, 2, 7]),
    )
    speeds = [0.2 + chance.random() for _ in range(game.stripes.num_splits)]
    for number in range(900):
        if number == 5:
            game.pools.pop(chance.randrange(2))  # with all that it was permitted
        before = game.stripes.total_env_steps(), game.limiter.num_updates
        for _ in range(40):
            game.move_all(chance, speeds)
        assert (game.stripes.total_env_steps(), game.limiter.num_updates) != before, "all wait"
        if number > 30 and game.stripes.total_env_steps() > 2000:
            return
    raise AssertionError("2000 steps take fewer rounds")


@pytest.mark.parametrize("num_local", [0, 1])
def test_a_run_ends_although_a_pool_with_rows_in_flight_does_not_come_back(num_local: int) -> None:
    chance = random.Random(8)
    game = Game(0.5, num_local, [1, 2], num_envs=2, warmup=10, tolerance=1000.0, target=600, rows_in_flight=7)
    speeds = [1.0] * game.stripes.num_splits
    for _ in range(5):
        game.move_all(chance, speeds)
    game.pools.pop(1)
    for _ in range(1000):
        game.move_all(chance, speeds)
    assert game.stripes.total_env_steps() < 600, "what was given to the pool may still arrive"
    game.now += LOST_AFTER_S
    for _ in range(100):
        game.move_all(chance, speeds)
    assert 600 <= game.stripes.total_env_steps() < 600 + 2 * game.num_envs, "rows are not divided"
    assert game.limiter.due == 0


def test_steps_are_counted_with_each_row_also_if_a_batch_takes_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent_rows, "BATCH_BYTES", 1)  # one row
    chance = random.Random(9)
    game = Game(0.5, 0, [2], num_envs=2, warmup=10, rows_in_flight=8)
    for _ in range(300):
        game.move_all(chance, [1.0, 1.0])
        assert game.stripes.total_env_steps() == int(np.count_nonzero(game.stripes.valid))
    assert game.limiter.num_updates > 50


def test_slow_local_workers_do_not_hold_back_pools_where_the_learner_waits() -> None:
    chance = random.Random(5)
    game = Game(0.1, 1, [1], num_envs=2, warmup=20, rows_in_flight=4)
    for _ in range(2000):
        game.move_all(chance, [0.05, 1.0])
    local, remote = game.stripes.num_rows[0], game.stripes.num_rows[1]
    assert remote > 5 * local > 0


def test_a_run_of_pools_ends_with_exactly_the_steps_that_it_was_given() -> None:
    chance = random.Random(6)
    game = Game(0.5, 0, [1, 2], num_envs=1, warmup=10, tolerance=1000.0, target=300)
    for _ in range(2000):
        game.move_all(chance, [0.5, 1.0, 0.7])
    assert game.num_made == game.stripes.total_env_steps() == 300
    assert game.limiter.due == 0


def test_a_round_of_sync_mode_does_not_begin_after_the_last_step() -> None:
    chance = random.Random(10)
    game = Game(0.5, 0, [1, 2], num_envs=2, warmup=10, is_async=False, target=100)
    for _ in range(600):
        game.move_all(chance, [1.0] * 3)
    assert 100 <= game.num_made < 100 + 3 * game.num_envs
    assert game.limiter.due == 0


def test_a_limit_waits_for_the_weights_that_it_names_and_calls_may_overtake_each_other() -> None:
    game = Game(1.0, num_local=0, pools=[2], num_envs=1, warmup=1000)
    (pool,) = game.pools
    pool.sender.permit(3, [(0, 5)])
    pool.sender.permit(1, [(1, 2)])
    assert [pool.limits.max_rows(split) for split in range(2)] == [0, 2]
    pool.sender.permit(1, [(1, 1)])
    assert pool.limits.max_rows(1) == 2, "a limit never falls"
    pool.sender.record_publication(4)
    assert pool.limits.max_rows(0) == 5


def test_a_pool_begins_behind_the_rows_of_a_restored_replay() -> None:
    game = Game(1.0, num_local=1, pools=[1], num_envs=2, warmup=10)
    chance = random.Random(7)
    for _ in range(60):
        game.move_all(chance, [1.0, 1.0])
    arena, stripes = new_replay(2, 2, 3000)
    stripes.restore(game.stripes.content())
    setup = SimpleNamespace(**{**vars(game.pools[0].setup), "arena": arena})
    receiver = RowReceiver(cast(Any, setup), [1])
    assert receiver.start == {1: stripes.num_rows[1]} == {1: game.stripes.num_rows[1] + 1}
    assert receiver.take_permits() == []
