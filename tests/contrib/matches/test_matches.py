"""Matches between policies, and against random actions."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bit_players import checkpoint_of
from gymnasium import spaces

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.matches.play import MatchResult, RandomPlayer, play_matches
from asyncrl.enjoy import main as enjoy
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec, spec_of_spaces
from asyncrl.evaluate import main
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import Checkpoint
from asyncrl.storage.run_folder import MARKER


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path / "good", "agent_envs:take_turns", True)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path / "bad", "agent_envs:take_turns", False)


def test_the_policy_plays_each_agent_against_each_opponent(
    good: Path, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--checkpoint={good}", f"--opponents=random,{bad}", "--episodes=20", "--json"]
    assert main(flags) == 0
    printed = capsys.readouterr()
    matches, lines = json.loads(printed.out)["matches"], printed.err.splitlines()
    assert [(each["opponent"], each["agent"]) for each in matches] == [
        ("random", "first"), ("random", "second"), (str(bad), "first"), (str(bad), "second"),
    ]  # fmt: skip
    assert [each["mean_reward"] for each in matches] == [3.0, 2.0] * 2
    assert [each["won"] for each in matches[2:]] == [20, 20]
    for each in matches[:2]:
        assert each["won"] + each["drawn"] + each["lost"] == 20 and each["won"] > 5
    assert lines[2].split() == ["opponent", "plays", "won", "drawn", "lost", "share", "won", "(95", "%)", "return"]
    assert len(lines) == 7


def test_who_plays_the_other_agents_changes_their_returns_only(good: Path, bad: Path) -> None:
    (result, _) = play_matches(load_policy(bad), {"good": [load_policy(good)]}, episodes=5)
    assert result.returns == (0.0,) * 5 and result.best_of_others == (2.0,) * 5
    assert (result.won, result.drawn, result.lost) == (0, 0, 5)


def test_each_match_has_environments_of_its_own_name(good: Path, bad: Path) -> None:
    made: list[tuple[str, int]] = []

    def make(match: str, number: int) -> Any:
        made.append((match, number))
        return make_env("agent_envs:take_turns")

    opponents = {name: [load_policy(bad)] for name in ("bad", "worse")}
    policy = load_policy(good)
    play_matches(policy, opponents, episodes=2, num_envs=2, make_envs=lambda match: functools.partial(make, match))
    names = [f"{agent} against {name}" for name in opponents for agent in ("first", "second")]
    assert made == [(name, number) for name in names for number in range(2)]


def test_random_players_keep_to_the_mask() -> None:
    env = "agent_envs:masked"
    spec, config = read_spec(make_env(env), env), TrainConfig(env=env, encoder_mlp_layers=[])
    policy = Policy(ActorCritic(spec, config), spec, config)
    (first, _) = play_matches(policy, {"random": [RandomPlayer(spec, config, 0)]}, episodes=5)
    assert first.returns == (3.0,) * 5  # the game raises at a forbidden action


@pytest.mark.parametrize("settings", [{}, {"squash_actions": True}, {"action_unit": "raw"}])
def test_random_players_draw_uniformly_within_finite_bounds(settings: dict[str, Any]) -> None:
    spec = spec_of_spaces(spaces.Box(-1.0, 1.0, (2,)), spaces.Box(0.0, 10.0, (1,)), "Wide", None)
    player = RandomPlayer(spec, TrainConfig(**settings), seed=0)
    actions, _ = player.step(np.zeros((4000, 2), np.float32), player.initial_state(4000), deterministic=False)
    counts = np.histogram(actions, bins=10, range=(0.0, 10.0))[0]
    assert counts.sum() == 4000 and counts.min() > 300 and counts.max() < 500


def test_the_interval_of_a_share() -> None:
    result = MatchResult("a", "b", (1.0,) * 8 + (0.0,) * 2, (0.5,) * 10)
    assert result.won_ci95 == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe 1998, method 3
    assert MatchResult("a", "b", (1.0,) * 4, (0.0,) * 4).won_ci95[1] == pytest.approx(1.0)


def test_mistakes_are_one_sentence(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = checkpoint_of(tmp_path / "other", "agent_envs:own_bits", True)
    for flags, text in (
        ([f"--opponents={other}"], "was trained in agent_envs:own_bits, with other spaces"),
        (["--opponents=nowhere"], "nowhere"),
        (["--opponents=,"], "--opponents names no opponent"),
        (["--opponents=random", "--compare=best"], "--compare is not possible with --opponents, which plays matches"),
        (["--opponents=random", "--episodes_csv=a.csv"], "--episodes_csv is not possible with --opponents"),
    ):
        assert main([f"--checkpoint={good}", *flags]) == 2
        assert text in capsys.readouterr().err
    alone = tmp_path / "alone"
    config = TrainConfig(env="CartPole-v1", encoder_mlp_layers=[])
    spec = read_spec(make_env("CartPole-v1"), "CartPole-v1")
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    path = checkpoints.save(alone, Checkpoint(ActorCritic(spec, config).state_dict(), {}, state), 100, keep=1)
    for command, where in ((main, f"--checkpoint={path}"), (enjoy, str(path))):
        assert command([where, "--opponents=random"]) == 2
        assert "needs an environment of several agents, and CartPole-v1 has one" in capsys.readouterr().err


def test_a_policy_plays_all_agents_of_its_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    for kind in range(2):
        checkpoint_of(run / "checkpoints" / f"policy_{kind}", "agent_envs:unlike", True, kind)
    (run / MARKER).touch()
    for kind, agents in enumerate(("narrow_0, narrow_1", "wide")):
        for opponent in ("random", str(run)):
            flags = [f"--checkpoint={run}/checkpoints/policy_{kind}", f"--opponents={opponent}", "--episodes=10"]
            assert main([*flags, "--json"]) == 0
            (match,) = json.loads(capsys.readouterr().out)["matches"]
            assert (match["agent"], match["mean_reward"]) == (agents, 5.0)
            assert match["won"] > 5 if opponent == "random" else match["drawn"] == 10


def test_in_a_match_opponents_and_places_change_with_the_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = checkpoint_of(tmp_path / "good", "drawn_envs:game", True)
    bad = checkpoint_of(tmp_path / "bad", "drawn_envs:game", False)
    assert enjoy([str(good), f"--opponents={bad},random", "--deterministic", "--video=match.mp4"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("episode")]
    assert lines[0] == f"episode 1: first (policy) 3.00, second ({bad}) 0.00, 6 steps"
    assert lines[1].startswith("episode 2: first (policy) 3.00, second (random) ")
    assert lines[2] == f"episode 3: first ({bad}) 0.00, second (policy) 2.00, 6 steps"
    assert lines[3].startswith("episode 4: first (random) ") and len(lines) == 4
    assert Path("match.mp4").stat().st_size > 0
