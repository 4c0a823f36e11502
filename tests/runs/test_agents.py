"""Whole runs of games with several agents, in all modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helper import GAMES, run

from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy
from asyncrl.run import preflight
from asyncrl.run.preflight import Preflight


@pytest.mark.parametrize("mode", ["sync-central", "async-local"])
def test_every_agent_learns_its_own_task(tmp_path: Path, mode: str) -> None:
    settings = {**GAMES, "batch_size": 2 * 4 * 3 * 8, "train_for_env_steps": 3000}
    finished = run(tmp_path, mode, "agent_envs:own_bits", **settings)
    result = evaluate(load_policy(Path(finished.outcome.checkpoint or "")), episodes=10, deterministic=True)
    assert result.returns_by_agent["agent_0"] == (10.0,) * 10
    assert result.returns_by_agent["agent_2"] == (5.0,) * 10
    assert result.mean_reward == pytest.approx(20 / 3)
    last = finished.learner_reports[-1]
    assert 3000 <= last.env_steps < 3100
    assert last.agent_steps == 3 * last.env_steps


@pytest.mark.parametrize(("mode", "use_rnn"), [("serial", True), ("async-local", False)])
def test_a_player_learns_from_what_it_gets_while_it_waits(tmp_path: Path, mode: str, use_rnn: bool) -> None:
    settings = {**GAMES, "batch_size": 2 * 4 * 2 * 8, "train_for_env_steps": 4000, "use_rnn": use_rnn}
    settings |= {"rnn_size": 8, "num_epochs": 2, "learning_rate": 0.02}
    finished = run(tmp_path, mode, "agent_envs:take_turns", **settings)
    result = evaluate(load_policy(Path(finished.outcome.checkpoint or "")), episodes=10, deterministic=True)
    assert result.returns_by_agent == {"first": (3.0,) * 10, "second": (2.0,) * 10}
    trained = [report.train for report in finished.learner_reports if report.train is not None]
    if mode == "serial":  # states in training are those of acting, across rows in which a player waits
        assert max(metrics.max_ratio_deviation_first_batch for metrics in trained) < 1e-4
    last = finished.learner_reports[-1]
    assert last.agent_steps < last.env_steps  # one of the two moves, and some last actions are not samples


def test_a_mask_of_a_player_that_waits_may_forbid_everything(tmp_path: Path) -> None:
    settings = {**GAMES, "batch_size": 2 * 4 * 2 * 8, "train_for_env_steps": 500}
    finished = run(tmp_path, "async-local", "agent_envs:masked", **settings)
    assert finished.outcome.error is None and finished.outcome.checkpoint is not None


def test_rows_in_which_a_player_waits_are_never_trained(tmp_path: Path) -> None:
    """A waiting player is shown nothing new: what it is trained on is always a bit."""
    settings = {**GAMES, "batch_size": 2 * 4 * 2 * 8, "train_for_env_steps": 500}
    finished = run(tmp_path, "async-local", "agent_envs:take_turns", recorded=True, **settings)
    assert len(finished.datasets) > 3
    for dataset in finished.datasets:
        assert (dataset["valid"] & dataset["idle"]).sum() == 0
        assert dataset["valid"].sum() < 0.51 * dataset["valid"].size


def preflight_of(**settings: Any) -> Preflight:
    return preflight.run(LoadedConfig(TrainConfig(env="agent_envs:own_bits", **settings), {}), Machine(cores=2))


def test_what_cannot_train_several_agents_is_refused() -> None:
    assert [str(problem) for problem in preflight_of().problems] == []
    for name, value in (("algo", "sac"), ("backend", "hogwild")):
        settings = {name: value, **({"algo": "a2c"} if name == "backend" else {})}
        (problem,) = preflight_of(**settings).problems
        assert f"has 3 agents, which --{name}={value} cannot train." in problem.text


def test_synchronous_datasets_hold_whole_rollouts_of_all_agents() -> None:
    (problem,) = preflight_of(async_rl=False, num_workers=2, num_envs_per_worker=4, rollout=64).problems
    assert "2 x 4 x 3 x 64 = 1536" in problem.text
    assert "num_envs_per_worker x agents x rollout" in problem.text
    fitting = {"batch_size": 96, "num_batches_per_epoch": 16, "num_workers": 2, "num_envs_per_worker": 4}
    found = preflight_of(async_rl=False, rollout=64, **fitting)
    assert found.problems == ()
    assert found.plan.num_slots == 2 and found.plan.columns_per_split == 12


def test_async_uses_every_core_though_the_agents_do_not_divide_a_dataset() -> None:
    plan = preflight_of().plan
    assert (plan.num_workers, plan.num_envs_per_worker, plan.num_agents) == (2, 10, 3)
