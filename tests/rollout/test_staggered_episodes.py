"""Environments with episodes of fixed length run out of phase after one shortened episode each."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from small_runs import BOX, FakeActions, SlotFiller, planned, small_arena

from asyncrl.rollout.env_group import EnvGroup, staggered_length

LIMIT = 20


class Clock(gymnasium.Env[Any, Any]):
    """Observes the step of the episode; ends it where `terminates_at` or `truncates_at` says so."""

    def __init__(self, terminates_at: int = 10**9, truncates_at: int = 10**9) -> None:
        self.ends = terminates_at, truncates_at
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        terminated, truncated = (self.time >= end for end in self.ends)
        return np.full(2, float(self.time)), 1.0, terminated, truncated, {}


class Filled:
    """A slot of `rows` rows of environments with the numbers 3, 4, ... of a run."""

    def __init__(self, envs: list[gymnasium.Env[Any, Any]], rows: int, is_staggered: bool = True) -> None:
        plan = planned(rollout=rows, batch_size=4 * rows * len(envs), num_workers=1, num_envs_per_worker=len(envs))
        _, self.slots = small_arena(plan, BOX)
        group = EnvGroup(envs, range(len(envs)), 3, BOX, mapping="raw")
        if is_staggered:
            group.stagger_episodes()
        self.slots.grant(0, 0)
        SlotFiller(group, self.slots, FakeActions(self.slots)).fill(0)
        self.slots.take(0)
        self.episodes = [(episode.length, episode.episode_return) for episode in group.take_episodes()]

    def ends(self, env: int = 0) -> list[int]:
        """Rows whose step was truncated."""
        return np.flatnonzero(self.slots.truncated[0, :, env]).tolist()

    def observed(self, env: int = 0) -> list[float]:
        return self.slots.obs[0, :, env, 0].tolist()


def limited(env: Clock) -> gymnasium.Env[Any, Any]:
    return TimeLimit(env, LIMIT)


@pytest.mark.parametrize("num_envs", [2, 8, 16, 61])
def test_phases_of_any_neighbours_leave_no_large_gap(num_envs: int) -> None:
    for first in range(40):
        phases = np.sort([staggered_length(first + idx, 10_000) for idx in range(num_envs)])
        gaps = np.diff(np.append(phases, phases[0] + 10_000))
        assert gaps.max() < 2.0 * 10_000 / num_envs


def test_a_shortened_episode_has_at_least_one_step_and_at_most_all() -> None:
    assert {staggered_length(idx, 1) for idx in range(100)} == {1}
    assert {staggered_length(idx, 3) for idx in range(100)} == {1, 2, 3}


def test_the_first_episode_is_truncated_early_and_the_next_are_whole() -> None:
    run = Filled([limited(Clock()), limited(Clock())], rows=70)
    for env in (0, 1):
        first = staggered_length(3 + env, LIMIT)
        assert first not in (1, LIMIT)
        # After each truncation, one row holds the final observation.
        assert run.ends(env)[:3] == [first - 1, first + LIMIT, first + 2 * LIMIT + 1]
        assert run.observed(env)[: first + 2] == [*map(float, range(first + 1)), 0.0]
        assert not run.slots.terminated[0, :, env].any()
        assert not run.slots.valid[0, first, env]


def test_statistics_leave_shortened_episodes_out() -> None:
    assert Filled([limited(Clock())], rows=70).episodes == [(LIMIT, float(LIMIT))] * 2


def test_an_episode_that_terminates_before_it_is_cut_counts_and_no_other_is_shortened() -> None:
    run = Filled([limited(Clock(terminates_at=2))], rows=30)
    assert run.ends() == []
    assert run.episodes == [(2, 2.0)] * 15


def test_an_environment_that_truncates_itself_has_its_second_episode_shortened() -> None:
    run = Filled([Clock(truncates_at=LIMIT)], rows=70)
    second = staggered_length(3, LIMIT)
    assert run.ends() == [LIMIT - 1, LIMIT + second, 2 * LIMIT + second + 1]
    assert run.episodes == [(LIMIT, float(LIMIT))] * 2


def test_without_staggering_or_without_a_limit_no_episode_is_shortened() -> None:
    assert Filled([limited(Clock())], rows=50, is_staggered=False).ends() == [LIMIT - 1, 2 * LIMIT]
    assert Filled([Clock()], rows=50).ends() == []
