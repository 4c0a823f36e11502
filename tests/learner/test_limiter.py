"""Learning and collecting keep to the asked ratio, whoever is slower, and never wait for each other at once."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from replays import TaggedWriter, new_replay

from asyncrl.buffers.replay import ReplayLimiter, ReplayLimits
from asyncrl.config.plan import ReplayPlan
from asyncrl.learner.replay_sampler import ReplaySampler

ENDLESS = 10**12


class Game:
    """A learner and the splits, who move when the test lets them and the limits do."""

    def __init__(
        self,
        ratio: float,
        num_splits: int,
        num_envs: int,
        warmup: int,
        tolerance: float = 0.0,
        is_async: bool = True,
        target: int = ENDLESS,
    ) -> None:
        arena, self.stripes = new_replay(num_splits, num_envs, 1000)
        self.limits = ReplayLimits(arena)
        plan = ReplayPlan(size=1000, warmup_env_steps=warmup, updates_per_env_step=ratio, tolerance=tolerance)
        self.limiter = ReplayLimiter(self.limits, plan, self.stripes, is_async, target)
        self.writers = [TaggedWriter(self.stripes, split, seed=split) for split in range(num_splits)]
        self.num_updates = 0
        self.limiter.release()

    def step(self, split: int) -> bool:
        if not self.limits.may_step(split, self.stripes.num_rows[split], self.stripes.total_env_steps()):
            return False
        self.writers[split].write_rows(1)
        return True

    def update(self) -> bool:
        due = min(self.limiter.due, 16)
        if due > 0:
            self.limiter.num_updates += due
            self.num_updates += due
        self.limiter.release()
        return due > 0


@pytest.mark.parametrize("ratio", [0.25, 4.0])
@pytest.mark.parametrize("learner_speed", [0.02, 0.5, 0.98], ids=["slow learner", "even", "fast learner"])
def test_the_ratio_is_kept_within_two_percent_whoever_is_slower(ratio: float, learner_speed: float) -> None:
    game, chance = Game(ratio, 2, 4, warmup=100, tolerance=64.0), random.Random(1)
    for _ in range(1_000_000):
        if game.stripes.total_env_steps() >= 20_000:
            break
        if chance.random() < learner_speed:
            game.update()
        else:
            game.step(chance.randrange(2))
    assert game.stripes.total_env_steps() >= 20_000, "learner and workers all wait"
    while game.update():
        pass
    achieved = game.limiter.achieved_ratio
    assert achieved == game.num_updates / (game.stripes.total_env_steps() - 100)
    assert abs(achieved / ratio - 1.0) < 0.02


def test_learning_is_never_ahead_and_never_further_behind_than_the_slack() -> None:
    ratio, num_envs = Fraction("0.7"), 6
    game, chance = Game(0.7, 3, 2, warmup=50, tolerance=5.0), random.Random(2)
    slack = ratio * 2 * num_envs + 1 + 5
    for _ in range(5_000):
        if chance.random() < 0.3:
            game.update()
        else:
            game.step(chance.randrange(3))
        behind = ratio * (game.stripes.total_env_steps() - 50) - game.num_updates
        # A split that may step makes all its environments step.
        assert game.num_updates == 0 or behind >= 0
        assert behind <= slack + 1 + ratio * 2


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("seed", range(15))
def test_somebody_can_always_go_on(is_async: bool, seed: int) -> None:
    chance = random.Random(seed)
    game = Game(
        ratio=chance.choice([0.01, 0.1, 0.3, 1.0, 2.5, 16.0]),
        num_splits=chance.randint(1, 4),
        num_envs=chance.randint(1, 5),
        warmup=chance.choice([1, 10, 333]),
        tolerance=chance.choice([0.0, 0.5, 64.0]) if is_async else 0.0,
        is_async=is_async,
    )
    speeds = [chance.random() ** 3 for _ in game.writers]
    for _ in range(1500):
        moves = [game.update(), *(game.step(split) for split in range(len(speeds)) if chance.random() < speeds[split])]
        if not any(moves):
            assert any(game.step(split) for split in range(len(speeds))), "learner and workers all wait"


def test_in_sync_mode_each_split_steps_once_and_then_all_that_is_due_is_learned() -> None:
    game = Game(20.0, 3, 2, warmup=6, is_async=False)
    assert [game.step(split) for split in (0, 0, 2, 1, 1)] == [True, False, True, True, False]
    assert not game.update()  # the warm-up has just ended
    assert [game.step(split) for split in (2, 1)] == [True, True]
    assert not game.update()  # the round is not over
    assert [game.step(split) for split in (1, 0)] == [False, True]
    due = 20 * (game.stripes.total_env_steps() - 6)
    while game.num_updates < due:
        assert not any(game.step(split) for split in range(3))
        assert game.update()
    assert not game.update()
    assert all(game.step(split) for split in range(3))


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_workers_stop_at_the_steps_of_the_run(is_async: bool) -> None:
    game = Game(0.5, 2, 1, warmup=10, tolerance=1000.0 * is_async, is_async=is_async, target=50)
    for _ in range(500):
        game.update()
        for split in range(2):
            game.step(split)
    assert 50 <= game.stripes.total_env_steps() <= 51
    assert game.limiter.due == 0


def test_a_last_round_that_the_end_of_the_run_cuts_short_is_learned_from() -> None:
    game = Game(1.0, 2, 2, warmup=4, is_async=False, target=6)
    assert [game.step(split) for split in (0, 1)] == [True, True]
    assert not game.update()
    assert [game.step(split) for split in (0, 1)] == [True, False]
    assert game.update()
    assert game.num_updates == 2


@pytest.mark.parametrize(("ratio", "tenths"), [(0.1, 1), (0.3, 3), (0.7, 7)])
def test_fractions_do_not_drift_over_a_long_run(ratio: float, tenths: int) -> None:
    arena, stripes = new_replay(1, 1, 4)
    limiter = ReplayLimiter(ReplayLimits(arena), ReplayPlan(4, 1, ratio, 0.0), stripes, True, ENDLESS)
    stripes.publish(0, 1)
    assert limiter.due == 0
    stripes.publish(0, 10**10)
    assert limiter.due == tenths * 10**9
    limiter.num_updates += tenths * 10**9
    for num_more in range(1, 11):
        stripes.publish(0, 1)
        assert limiter.due == num_more * tenths // 10


def test_rounds_begin_where_the_stripes_of_a_restored_replay_end() -> None:
    arena, stripes = new_replay(2, 2, 100)
    for split, num_rows in enumerate((3, 9)):
        TaggedWriter(stripes, split, seed=split).write_rows(num_rows)
    limits = ReplayLimits(arena)
    limiter = ReplayLimiter(limits, ReplayPlan(400, 10**6, 1.0, 0.0), stripes, False, ENDLESS)
    for num_rounds in range(1, 4):
        limiter.release()
        rows = [3 + num_rounds, 9 + num_rounds]
        assert [limits.may_step(split, rows[split] - 1, 0) for split in range(2)] == [True, True]
        assert [limits.may_step(split, rows[split], 0) for split in range(2)] == [False, False]
        for split in range(2):
            TaggedWriter(stripes, split, seed=split).write_rows(1)


def test_with_its_replay_a_run_counts_on_and_without_it_begins_with_the_warm_up() -> None:
    game, plan = Game(1.0, 2, 2, warmup=20), ReplayPlan(1000, 20, 1.0, 0.0)
    for _ in range(40):
        game.step(0)
        game.step(1)
        game.update()
    game.step(0)

    arena, stripes = new_replay(2, 2, 1000)
    stripes.restore(game.stripes.content())
    resumed = ReplayLimiter(ReplayLimits(arena), plan, stripes, True, ENDLESS)
    resumed.load_state_dict(game.limiter.state_dict())
    assert resumed.due == game.limiter.due > 0
    assert resumed.achieved_ratio == game.limiter.achieved_ratio

    arena, empty = new_replay(2, 2, 1000)
    anew = ReplayLimiter(ReplayLimits(arena), plan, empty, True, ENDLESS)
    due = []
    for steps in (19, 3, 10):
        empty.publish(0, steps)
        due.append(anew.due)
    assert due == [0, 2, 12]


def test_updates_wait_for_rows_that_are_missing_but_the_warm_up_is_not_shortened() -> None:
    arena, stripes = new_replay(4, 1, 1000)
    for split, rows in enumerate((55, 40, 40, 40)):
        TaggedWriter(stripes, split, seed=split, end_probability=0.0).write_rows(rows)
    sampler = ReplaySampler(stripes, 60, 0.9, 1.0, None, seed=0)
    assert sampler.num_missing_rows == 6 + 21 + 21 + 21, "of transitions of 60 steps, whichever stripe gets the rows"
    for warmup, begin in ((100, 175 + 69), (300, 300)):
        limiter = ReplayLimiter(ReplayLimits(arena), ReplayPlan(1000, warmup, 1.0, 0.0), stripes, True, ENDLESS)
        limiter.begin_after(sampler.num_missing_rows)
        assert limiter.state_dict()["start"] == begin
    for split, rows in enumerate((4, 20, 20, 20)):
        TaggedWriter(stripes, split, seed=9, end_probability=0.0).write_rows(rows)
    assert sampler.num_missing_rows == 5
    TaggedWriter(stripes, 1, seed=9, end_probability=0.0).write_rows(1)
    assert sampler.num_missing_rows == 0
    sampler.sample(1, 8)


def test_with_another_ratio_a_resumed_run_counts_from_where_it_is() -> None:
    game = Game(1.0, 2, 2, warmup=20)
    for _ in range(40):
        game.step(0)
        game.step(1)
        game.update()
    arena, stripes = new_replay(2, 2, 1000)
    stripes.restore(game.stripes.content())
    resumed = ReplayLimiter(ReplayLimits(arena), ReplayPlan(1000, 20, 0.25, 0.0), stripes, True, ENDLESS)
    resumed.load_state_dict(game.limiter.state_dict())
    assert resumed.due == 0
    stripes.publish(0, 8)
    assert resumed.due == 2
