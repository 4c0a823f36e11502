"""Whole runs of environments whose observations and actions are tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode
from run_helper import mean_return, run

from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import load_policy
from asyncrl.observers.reports import EvaluationReport, RolloutReport
from asyncrl.processes.children import RunFailed

TENSORS: dict[str, Any] = {"env_backend": "tensor", "num_workers": 1, "num_envs_per_worker": 16}


def test_cart_pole_is_learned_on_the_device(tmp_path: Path) -> None:
    settings = {"rollout": 32, "batch_size": 128, "num_batches_per_epoch": 4, "num_epochs": 6, "learning_rate": 2e-3}
    finished = run(
        tmp_path, "serial", "tensor_envs:TensorCartPole-v0", **TENSORS, **settings, train_for_env_steps=35_000
    )
    assert finished.plan.num_slots == 0, "no room for samples in the host's memory"
    assert max(r.train.max_ratio_deviation_first_batch for r in finished.learner_reports if r.train) < 1e-4
    collected = [report for report in finished.reports if isinstance(report, RolloutReport)]
    assert sum(report.env_steps for report in collected) == finished.outcome.env_steps
    lengths = [episode.length for report in collected for episode in report.episodes]
    assert all(episode.episode_return == episode.length for report in collected for episode in report.episodes)
    assert sum(lengths) <= finished.outcome.env_steps + len(lengths), "at most a step of each is lost"
    assert evaluate(load_policy(finished.outcome.checkpoint or ""), episodes=10).mean_reward > 150


def test_a_dataset_may_hold_several_trajectories(tmp_path: Path) -> None:
    settings = {"rollout": 8, "batch_size": 64, "num_batches_per_epoch": 4, "train_for_env_steps": 1000}
    finished = run(tmp_path, "serial", "tensor_envs:TensorCartPole-v0", **TENSORS, **settings)
    collected = sum(report.env_steps for report in finished.reports if isinstance(report, RolloutReport))
    assert len(finished.learner_reports) == 4 and collected == finished.outcome.env_steps
    assert max(r.train.max_ratio_deviation_first_batch for r in finished.learner_reports if r.train) < 1e-4


@pytest.mark.parametrize(
    ("autoreset_mode", "terminates"),
    [(AutoresetMode.NEXT_STEP, True), (AutoresetMode.SAME_STEP, False), (AutoresetMode.DISABLED, False)],
)
def test_values_are_right_in_each_mode(autoreset_mode: AutoresetMode, terminates: bool, tmp_path: Path) -> None:
    kwargs = {"autoreset_mode": autoreset_mode.value, "terminates": terminates}
    settings = {"env_kwargs": kwargs, "gamma": 0.8, "train_for_env_steps": 8000}
    trained = run(tmp_path, "serial", "tensor_envs:TensorEndlessReward-v0", **TENSORS, **settings)
    if terminates:
        observations, expected = ([0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0]), [1.0, 1.8, 2.44, -5.0 + 0.8 * 2.44]
    else:
        observations, expected = ([0.0, 0.0], [1.0, 0.0]), [5.0, -1.0]
    assert trained.values(*observations) == pytest.approx(expected, abs=0.25)


def test_values_are_right_if_a_worker_of_its_own_steps_the_simulator(tmp_path: Path) -> None:
    kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP.value, "terminates": False}
    settings = {"env_backend": "gym_vector", "num_workers": 1, "env_kwargs": kwargs, "gamma": 0.8}
    trained = run(tmp_path, "async-local", "tensor_envs:TensorEndlessReward-v0", **settings, train_for_env_steps=10_000)
    assert trained.values([0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -1.0], abs=0.25)


def test_a_recurrent_policy_is_trained_on_the_device(tmp_path: Path) -> None:
    settings = {"use_rnn": True, "rnn_size": 8, "rollout": 8, "recurrence": 4, "batch_size": 128}
    settings |= {"eval_every_env_steps": 500, "eval_episodes": 4}
    finished = run(tmp_path, "serial", "tensor_envs:TensorCartPole-v0", **TENSORS, **settings, train_for_env_steps=2000)
    deviations = [r.train.max_ratio_deviation_first_batch for r in finished.learner_reports if r.train is not None]
    assert max(deviations) < 1e-4, "trained from the states that acted"
    assert [report.episodes for report in finished.reports if isinstance(report, EvaluationReport)][-1] == 4


def test_sac_learns_from_a_replay_on_the_device(tmp_path: Path) -> None:
    settings = {"algo": "sac", "warmup_env_steps": 300, "batch_size": 64, "updates_per_env_step": 0.5, "gamma": 0.8}
    kwargs = {"autoreset_mode": AutoresetMode.NEXT_STEP.value}
    settings |= {"env_kwargs": kwargs, "train_for_env_steps": 2000, "save_replay": True}
    finished = run(tmp_path, "serial", "tensor_envs:make_reach", **TENSORS, **settings)
    assert finished.outcome.env_steps >= 2000
    assert mean_return(finished) > -0.15
    checkpoint = Path(finished.outcome.checkpoint or "")
    longer = {**settings, "train_for_env_steps": 2100}
    resumed = run(tmp_path, "serial", "tensor_envs:make_reach", **TENSORS, **longer, resume_from=checkpoint)
    assert resumed.outcome.env_steps >= 2100
    sizes = [report.replay.size for report in resumed.learner_reports if report.replay is not None]
    assert sizes[0] > 1900, "the replay was restored"


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    env = "tensor_envs:TensorCartPole-v0"
    first = run(tmp_path / "first", "serial", env, **TENSORS, train_for_env_steps=1000)
    second = run(
        tmp_path / "second",
        "serial",
        env,
        **TENSORS,
        train_for_env_steps=2000,
        resume_from=Path(first.outcome.checkpoint or ""),
    )
    assert 2000 <= second.outcome.env_steps < 3000


def test_what_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="a reward or an observation that is not finite at its step 16"):
        run(tmp_path, "serial", "tensor_envs:GivesNan-v0", **TENSORS)
