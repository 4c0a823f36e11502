"""Who plays the agents of a game in self-play, what its rows say, and which games have a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import agent_envs
import numpy as np
import pytest
from policy_envs import MarkingPolicies
from small_runs import SlotFiller, planned, small_arena

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.layout import opponent_prefix
from asyncrl.buffers.weights import WeightsChannel, weights_specs
from asyncrl.contrib.self_play.mapping import MatchRecord, SelfPlayMapping
from asyncrl.envs.agents import as_agents_env
from asyncrl.envs.spaces import read_spec
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.worker import LocalActions

BLOCK = np.zeros(4, np.float32)


def pool(*members: int | None) -> list[WeightsChannel]:
    """Opponents that are members of these steps; None for one that has published nothing."""
    channels = [WeightsChannel(Arena.create(weights_specs(len(BLOCK)))) for _ in members]
    for channel, env_steps in zip(channels, members, strict=True):
        if env_steps is not None:
            channel.publish(BLOCK, 0, env_steps)
    return channels


def play(mapping: SelfPlayMapping, num_agents: int, env: int = 0, returns: Sequence[float] = ()) -> list[int]:
    """A whole game of an environment; returns who plays each agent."""
    columns = range(env * num_agents, (env + 1) * num_agents)
    mapping.begin(columns)
    played = mapping.policy_idx[columns.start : columns.stop].tolist()
    for column, value in zip(columns, returns or [0.0] * num_agents, strict=True):
        mapping.end(column, value)
    return played


def test_in_its_share_of_games_one_agent_is_the_policys_and_one_member_plays_all_others() -> None:
    mapping = SelfPlayMapping(pool(100, None, 300), 0.3, ("a", "b", "c"), 1, seed=3)
    games = [play(mapping, 3) for _ in range(6000)]
    against = [game for game in games if any(game)]
    assert len(against) == pytest.approx(1800, abs=4 * (6000 * 0.3 * 0.7) ** 0.5)
    counts: dict[tuple[int, int], int] = {}
    for game in against:
        (agent,) = [place for place, played in enumerate(game) if played == 0]
        (opponent,) = set(game) - {0}
        counts[agent, opponent] = counts.get((agent, opponent), 0) + 1
    # Opponent 2 has no weights; each agent and each of the other two is equally likely.
    assert set(counts) == {(agent, opponent) for agent in range(3) for opponent in (1, 3)}
    expected = len(against) / 6
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 20.5  # 5 degrees of freedom: 0.001


def test_an_empty_pool_leaves_all_games_to_the_policy_and_its_first_member_plays_from_the_next_game_on() -> None:
    opponents = pool(None, None)
    mapping = SelfPlayMapping(opponents, 1.0, ("a", "b"), 1, seed=0)
    assert [play(mapping, 2) for _ in range(5)] == [[0, 0]] * 5
    mapping.begin([0, 1])
    opponents[1].publish(BLOCK, 0, 50)
    mapping.end(0, 1.0)
    mapping.end(1, 0.0)
    assert mapping.matches == []
    assert sorted(play(mapping, 2)) == [0, 2]
    assert mapping.matches == [MatchRecord(50, 0.5)]


def test_a_match_is_won_with_the_largest_return_of_all_and_known_with_the_last_episode() -> None:
    mapping = SelfPlayMapping(pool(70), 1.0, ("a", "b", "c"), 2, seed=1)
    mapping.begin(range(3))
    mapping.begin(range(3, 6))
    (own,) = np.flatnonzero(mapping.policy_idx[3:] == 0) + 3
    others = [column for column in range(3, 6) if column != own]
    assert mapping.end(others[0], 1.0) is None
    assert mapping.end(int(own), 2.0) == 0
    assert mapping.matches == []
    assert mapping.end(others[1], 1.5) is None
    assert mapping.matches == [MatchRecord(70, 1.0)]
    mapping.matches = []
    for rest, expected in (((2.0, 1.0), 0.5), ((2.1, -3.0), 0.0), ((1.9, 1.9), 1.0)):
        mapping.begin(range(3, 6))
        returns = iter(rest)
        for column in range(3, 6):
            mapping.end(column, 2.0 if mapping.policy_idx[column] == 0 else next(returns))
        assert mapping.matches.pop().score == expected


def test_agents_that_come_late_play_in_the_game_that_goes_on() -> None:
    mapping = SelfPlayMapping(pool(10, 20, 30), 1.0, ("a", "b", "c"), 1, seed=2)
    for _ in range(200):
        mapping.begin([0, 2])
        mapping.end(0, 0.0)
        mapping.begin([1])
        played = mapping.policy_idx.tolist()
        assert played.count(0) == 1 and len(set(played)) == 2
        mapping.end(1, 0.0)
        mapping.end(2, 0.0)
    assert len(mapping.matches) == 200


def test_agents_whose_episodes_differ_in_length_play_games_that_end_when_each_has_ended_one() -> None:
    mapping = SelfPlayMapping(pool(10), 1.0, ("a", "b"), 1, seed=4)
    mapping.begin([0, 1])
    nobody_trains = num_steps = 0
    for step in range(1, 7 * 11 * 20 + 1):
        num_steps += 1
        nobody_trains += 0 not in mapping.policy_idx.tolist()
        ended = [column for column, length in enumerate((7, 11)) if step % length == 0]
        for column in ended:
            mapping.end(column, float(column == 1))
        mapping.begin(ended)
    assert len(mapping.matches) > 90
    assert {match.score for match in mapping.matches} == {0.0, 1.0}
    assert nobody_trains < 0.25 * num_steps, "only while one still plays the game before"


def test_a_reset_after_one_agent_has_ended_begins_another_game_for_all() -> None:
    mapping = SelfPlayMapping(pool(10), 1.0, ("a", "b"), 1, seed=5)
    for _ in range(100):
        mapping.begin([0])
        mapping.begin([1])
        mapping.end(0, 0.0)
        mapping.record_reset(0)
        mapping.begin([0])
        mapping.begin([1])
        assert sorted(mapping.policy_idx.tolist()) == [0, 1]
        mapping.end(0, 0.0)
        mapping.end(1, 0.0)


def test_a_game_that_is_broken_off_or_whose_opponent_changed_has_no_result() -> None:
    opponents = pool(10)
    mapping = SelfPlayMapping(opponents, 1.0, ("a", "b"), 1, seed=0)
    mapping.begin([0, 1])
    mapping.end(0, 1.0)
    mapping.record_reset(0)
    assert sorted(play(mapping, 2)) == [0, 1]
    assert len(mapping.matches) == 1
    mapping.begin([0, 1])
    opponents[0].publish(BLOCK, 0, 20)
    mapping.end(0, 1.0)
    mapping.end(1, 0.0)
    assert len(mapping.matches) == 1
    play(mapping, 2)
    assert mapping.matches[1].member == 20


@pytest.mark.parametrize(
    "game",
    [
        agent_envs.Duel,
        agent_envs.ComeAndGo,
        agent_envs.TakeTurns,
        agent_envs.Listed,
        lambda: agent_envs.Listed(ends_by_truncation=True),
    ],
    ids=["truncated", "come_and_go", "turns", "resets_itself", "resets_itself_truncated"],
)
def test_in_every_row_of_a_game_the_same_agent_is_the_policys_and_its_row_counts_the_step(game: Any) -> None:
    env = as_agents_env(game(), "game")
    assert env is not None
    spec, rollout, num_slots = read_spec(env, "game"), 40, 6
    plan = planned(rollout=rollout, async_rl=False, num_workers=1, num_envs_per_worker=1, batch_size=2 * rollout)
    plan = dataclasses.replace(plan, num_agents=spec.num_agents, num_opponents=2, batch_size=num_slots * rollout * 3)
    arena, slots = small_arena(plan, spec)
    opponents = [WeightsChannel(arena.scoped(opponent_prefix(number))) for number in range(2)]
    for number, channel in enumerate(opponents):
        channel.publish(np.zeros(8, np.float32), 0, 100 + number)
    group = AgentsEnvGroup([env], [1], 0, spec, "raw")
    group.policies = SelfPlayMapping(opponents, 0.8, spec.agents, 1, seed=5)
    filler = SlotFiller(group, slots, LocalActions(MarkingPolicies(slots)))  # type: ignore[arg-type]
    for slot in range(num_slots):
        slots.refill(slot, 0)
        filler.fill(slot)
    assert slots.idle is not None and slots.is_env_step is not None and slots.policy_idx is not None
    is_live = np.concatenate(slots.valid[:num_slots] | slots.idle[:num_slots])
    played = np.concatenate(slots.policy_idx[:num_slots, :rollout])
    counted = np.concatenate(slots.is_env_step[:num_slots])
    seen = set()
    for live, row, counts in zip(is_live, played, counted, strict=True):
        if live.all():  # a game that all agents play
            assert (row == 0).all() or ((row == 0).sum() == 1 and len(set(row.tolist())) == 2)
            seen.add(tuple(row.tolist()))
        if counts.any() and (live & (row == 0)).any():
            assert counts.sum() == 1 and row[counts][0] == 0 and live[counts][0]
    assert len(seen) == 1 + 2 * spec.num_agents
    assert len(group.policies.matches) > 10
    recorded = group.take_episodes()
    assert {episode.policy_idx for episode in recorded} == {0}
