"""The pool of self-play: who enters and leaves, what is published, how ratings change, what a resumed run finds."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncrl.buffers.layout import opponent_prefix
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.self_play.mapping import MatchRecord
from asyncrl.contrib.self_play.pool import SelfPlayPool, elo_change
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.inference.policy import load_policy
from asyncrl.run.setup import RunSetup
from asyncrl.storage import checkpoint

ENV = "agent_envs:duel"


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[RunSetup]:
    """A run whose policy enters a pool of three every 100 steps."""
    pool = {"self_play": True, "self_play_pool_size": 3, "self_play_add_every_env_steps": 100}
    config = TrainConfig(env=ENV, num_workers=1, num_envs_per_worker=2, encoder_mlp_layers=[4], **pool)
    spec = read_spec(make_env(ENV), ENV)
    plan = resolve(config, Machine(cores=1), num_agents=2)
    made = RunSetup.create(config, plan, spec, tmp_path / "checkpoints")
    yield made
    made.arena.close()


def publish(setup: RunSetup, env_steps: int, value: float) -> None:
    """Weights of the policy that all are one number."""
    channel = WeightsChannel(setup.arena)
    size = setup.arena.array("weights.buffers").shape[1]
    channel.publish(np.full(size, value, np.float32), env_steps, env_steps)


def published(setup: RunSetup) -> dict[int, float]:
    """The first weight of each opponent that has any, by the steps of its member."""
    found = {}
    for number in range(setup.plan.num_opponents):
        arena = setup.arena.scoped(opponent_prefix(number))
        channel = WeightsChannel(arena)
        block = np.zeros(arena.array("weights.buffers").shape[1], np.float32)
        if (newest := channel.read(block, 0)) is not None:
            assert (block == block[0]).all()
            found[newest.env_steps] = float(block[0])
    return found


def pool_of(setup: RunSetup, tmp_path: Path, said: list[str] | None = None) -> SelfPlayPool:
    return SelfPlayPool(setup, tmp_path / "self_play", ([] if said is None else said).append)


def test_the_newest_weights_enter_after_so_many_steps_and_the_oldest_leave(setup: RunSetup, tmp_path: Path) -> None:
    pool = pool_of(setup, tmp_path)
    pool.add_if_due(1000)  # nothing is published yet
    for env_steps in (0, 40, 90, 130, 150, 229, 230, 300, 331, 450, 560):
        publish(setup, env_steps, float(env_steps))
        pool.add_if_due(env_steps)
        pool.add_if_due(env_steps)
    # 130 is the first of at least 100; then 230, 331, 450 and 560, and there is room for three.
    assert published(setup) == {331: 331.0, 450: 450.0, 560: 560.0}
    assert sorted(member.env_steps for member in pool.members.values()) == [331, 450, 560]
    folders = sorted(path.name for path in (tmp_path / "self_play").glob("checkpoint_*"))
    assert folders == [f"checkpoint_{env_steps:012d}" for env_steps in (331, 450, 560)]
    publish(setup, 600, 7.0)
    assert published(setup)[450] == 450.0  # members do not change
    member = tmp_path / "self_play" / "checkpoint_000000000331"
    assert all((tensor == 331.0).all() for tensor in checkpoint.load(member).model.values())
    assert load_policy(member).config.self_play_pool_size == 3


def test_ratings_change_by_the_right_numbers(setup: RunSetup, tmp_path: Path) -> None:
    assert elo_change(1200, 1200, 1.0) == 8.0
    assert elo_change(1200, 1200, 0.5) == 0.0
    # Of a player 200 points above, 76 % is expected (Elo 1978); 400 points are odds of 10 to 1.
    assert elo_change(1400, 1200, 0.0) == pytest.approx(16 * -0.7597, abs=1e-3)
    assert elo_change(1200, 1600, 1.0) == pytest.approx(16 * 10 / 11)
    pool = pool_of(setup, tmp_path)
    publish(setup, 100, 1.0)
    pool.add_if_due(100)
    pool.rate([MatchRecord(100, 1.0), MatchRecord(99, 1.0)])  # nobody knows member 99
    (first,) = pool.members.values()
    assert (pool.elo, first.elo) == (1208.0, 1192.0)
    publish(setup, 200, 2.0)
    pool.add_if_due(200)
    assert [member.elo for member in pool.members.values()] == [1192.0, 1208.0]  # a member enters with the policy's
    pool.rate([MatchRecord(200, 0.0), MatchRecord(200, 0.5)])
    drawn = elo_change(1200, 1216, 0.5)
    assert pool.elo == pytest.approx(1200 + drawn) and pool.members[1].elo == pytest.approx(1216 - drawn)
    member = dataclasses.asdict(pool.members[1])
    assert (member["won"], member["drawn"], member["lost"]) == (0, 1, 1)
    figures = pool.record()
    assert figures["self_play/elo"] == pool.elo and figures["self_play/pool_size"] == 2
    assert figures["self_play/win_rate"] == pytest.approx(1 / 3)
    assert figures["self_play/pool_elo_min"] == 1192.0 and figures["self_play/pool_elo_max"] == pool.members[1].elo


def test_a_later_start_of_the_run_finds_the_same_pool(setup: RunSetup, tmp_path: Path) -> None:
    pool = pool_of(setup, tmp_path)
    for env_steps in (100, 200):
        publish(setup, env_steps, float(env_steps))
        pool.add_if_due(env_steps)
        pool.rate([MatchRecord(env_steps, 1.0)])
    pool.record()
    ratings = {member.env_steps: member for member in pool.members.values()}
    arena = setup.arena
    later = resumed_at(200, setup)
    try:
        resumed = pool_of(later, tmp_path)
        assert published(later) == published(setup) == {100: 100.0, 200: 200.0}
        assert {member.env_steps: member for member in resumed.members.values()} == ratings
        assert resumed.elo == pool.elo > 1208.0
        publish(later, 299, 3.0)
        resumed.add_if_due(299)
        assert len(resumed.members) == 2
        publish(later, 300, 3.0)
        resumed.add_if_due(300)
        assert sorted(published(later)) == [100, 200, 300]
    finally:
        later.arena.close()
    assert arena is setup.arena


def resumed_at(env_steps: int, setup: RunSetup) -> RunSetup:
    """The setup of a later start of the run, from a checkpoint of these steps."""
    arena = RunSetup.create(setup.config, setup.plan, setup.spec, setup.checkpoints).arena
    return dataclasses.replace(setup, arena=arena, first_env_steps=env_steps)


@pytest.mark.parametrize(("resumes_at", "left"), [(250, [100, 200]), (200, [100, 200]), (99, [])])
def test_members_of_steps_that_a_killed_run_has_lost_leave_the_pool(
    setup: RunSetup, tmp_path: Path, resumes_at: int, left: list[int]
) -> None:
    pool = pool_of(setup, tmp_path)
    for env_steps in (100, 200, 300):
        publish(setup, env_steps, float(env_steps))
        pool.add_if_due(env_steps)
        pool.rate([MatchRecord(env_steps, 1.0)])
    pool.record()
    of_newest = {member.env_steps: member.elo for member in pool.members.values()}.get(max(left, default=0))
    later = resumed_at(resumes_at, setup)
    try:
        resumed = pool_of(later, tmp_path)
        assert sorted(published(later)) == left
        assert len(checkpoint.newest_first(tmp_path / "self_play")) == len(left)
        assert resumed.elo == (1200.0 if of_newest is None else of_newest) < pool.elo
        due = max(left, default=0) + 100
        publish(later, due, 5.0)
        resumed.add_if_due(due)
        assert sorted(published(later)) == [*left, due], "members enter again from here on"
        assert published(later)[due] == 5.0
    finally:
        later.arena.close()


def test_damaged_files_cost_a_member_or_the_ratings_and_not_the_run(setup: RunSetup, tmp_path: Path) -> None:
    pool = pool_of(setup, tmp_path)
    for env_steps in (100, 200):
        publish(setup, env_steps, float(env_steps))
        pool.add_if_due(env_steps)
    pool.record()
    (tmp_path / "self_play" / "checkpoint_000000000100" / "model.safetensors").write_bytes(b"nothing")
    (tmp_path / "self_play" / "ratings.json").write_text(json.dumps({"elo": "high"}))
    said: list[str] = []
    resumed = pool_of(dataclasses.replace(setup, first_env_steps=200), tmp_path, said)
    assert [member.env_steps for member in resumed.members.values()] == [200]
    assert resumed.elo == 1200.0
    assert len(said) == 1 and "continues without checkpoint_000000000100" in said[0]


def test_a_disk_that_refuses_a_member_leaves_the_pool_as_it_was(setup: RunSetup, tmp_path: Path) -> None:
    said: list[str] = []
    pool = pool_of(setup, tmp_path, said)
    publish(setup, 100, 1.0)
    (tmp_path / "self_play").write_text("no folder")
    pool.add_if_due(100)
    pool.record()
    assert pool.members == {} and published(setup) == {}
    assert len(said) == 2 and "does not enter the pool" in said[0]
    (tmp_path / "self_play").unlink()
    publish(setup, 200, 2.0)
    pool.add_if_due(200)
    assert published(setup) == {200: 2.0}
    shutil.rmtree(tmp_path / "self_play")
