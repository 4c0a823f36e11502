"""A run that was killed continues: to the bit in serial mode, and with everything counted on in parallel mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child_targets
import numpy as np
import pytest
import run_helper
import torch
from command import PROBE, Command

import asyncrl
from asyncrl import train as train_command
from asyncrl.analysis.records import ELAPSED, read_records
from asyncrl.observers.reports import EvaluationFailed, EvaluationReport, RolloutReport
from asyncrl.run import runner
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

REPEATABLE: dict[str, Any] = {
    "checkpoint_resets": True,
    "save_every_env_steps": 1000,
    "keep_checkpoints": 100,
    "normalize_input": True,
    "lr_schedule": "kl_adaptive_epoch",
}


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of a checkpoint, and its state without what the clock decides."""
    content = checkpoint.load(path)
    state = {name: value for name, value in content.state.items() if name != "elapsed_s"}
    return {**content.model, **content.optimizer}, state


def assert_same(first: Path, second: Path) -> None:
    (tensors, state), (other_tensors, other_state) = contents(first), contents(second)
    assert state == other_state
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name


@pytest.mark.parametrize("async_rl", [False, True])
def test_a_serial_run_that_is_resumed_equals_one_that_never_stopped(async_rl: bool, tmp_path: Path) -> None:
    settings = {**REPEATABLE, "async_rl": async_rl}
    whole = run_helper.run(tmp_path / "whole", "serial", "CartPole-v1", **settings)
    found = checkpoint.newest_first(tmp_path / "whole" / "checkpoints")
    assert len(found) == 4  # three boundaries, and the end
    collected = sum(report.env_steps for report in whole.reports if isinstance(report, RolloutReport))
    assert collected >= whole.outcome.env_steps  # no part keeps what it has collected to itself
    resumed = run_helper.run(tmp_path / "resumed", "serial", "CartPole-v1", resume_from=found[2], **settings)
    assert resumed.outcome.env_steps == whole.outcome.env_steps
    assert_same(Path(resumed.outcome.checkpoint), found[0])


def test_the_clock_of_records_continues_where_the_last_one_was(tmp_path: Path) -> None:
    flags = (
        "--env=CartPole-v1",
        *PROBE,
        "--serial_mode=True",
        f"--train_dir={tmp_path}",
        "--experiment=run",
        "--quiet",
    )
    assert train_command.main([*flags, "--train_for_env_steps=200"]) == 0
    path = tmp_path / "run" / "metrics.jsonl"
    first = read_records(path)
    slow = [{**record, ELAPSED: record[ELAPSED] + 500.0} for record in first]  # as after a start of 500 seconds
    path.write_text("".join(json.dumps(record) + "\n" for record in slow))
    assert train_command.main([*flags, "--train_for_env_steps=400"]) == 0
    times = [record[ELAPSED] for record in read_records(path)]
    assert len(times) > len(first) and times == sorted(times) and times[-1] < 560.0


def test_a_resumed_run_does_not_begin_with_the_episodes_with_which_it_once_began(tmp_path: Path) -> None:
    first = run_helper.run(tmp_path / "first", "serial", "CartPole-v1", recorded=True)
    path = Path(first.outcome.checkpoint)
    again = run_helper.run(
        tmp_path / "again", "serial", "CartPole-v1", recorded=True, resume_from=path, train_for_env_steps=5000
    )
    beginnings = [finished.datasets[0]["obs"][0] for finished in (first, again)]
    assert not np.isin(beginnings[0], beginnings[1]).any()


def test_evaluation_changes_nothing_of_a_repeatable_run(tmp_path: Path) -> None:
    plain = run_helper.run(tmp_path / "plain", "serial", "CartPole-v1")
    watched = run_helper.run(tmp_path / "watched", "serial", "CartPole-v1", eval_every_env_steps=900, eval_episodes=2)
    (tensors, _), (others, _) = contents(Path(plain.outcome.checkpoint)), contents(Path(watched.outcome.checkpoint))
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    assert_the_trained_policy_was_evaluated(watched)
    assert len(evaluations(watched)) >= 4


def test_a_process_evaluates_while_others_train_and_the_trained_policy_at_the_end(tmp_path: Path) -> None:
    run = run_helper.run(tmp_path, "async-local", "CartPole-v1", eval_every_env_steps=1900, eval_episodes=2)
    assert_the_trained_policy_was_evaluated(run)


def test_an_evaluation_that_dies_costs_nothing_but_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_evaluation_main", child_targets.die_as_evaluation)
    run = run_helper.run(tmp_path, "async-local", "CartPole-v1", eval_every_env_steps=1000)
    assert run.outcome.is_complete
    (failed,) = [report for report in run.reports if isinstance(report, EvaluationFailed)]
    assert "SIGKILL" in failed.reason


def evaluations(run: run_helper.FinishedRun) -> list[EvaluationReport]:
    return [report for report in run.reports if isinstance(report, EvaluationReport)]


def assert_the_trained_policy_was_evaluated(run: run_helper.FinishedRun) -> None:
    state = checkpoint.load(Path(run.outcome.checkpoint)).state
    last = evaluations(run)[-1]
    assert (last.env_steps, last.policy_version) == (state["env_steps"], state["policy_version"])
    best = max(report.mean_reward for report in evaluations(run))
    assert checkpoint.best_return(run.folder / "checkpoints") == best


def train(start: Callable[..., Command], *flags: str) -> tuple[int, str, str]:
    return start("asyncrl.train", "--with_tensorboard=False", *flags).finish()


def test_a_killed_run_goes_on_with_its_settings_and_its_curve(start: Callable[..., Command]) -> None:
    command = start(
        "asyncrl.train",
        "--env=CartPole-v1",
        "--preset=none",
        *PROBE,
        "--num_epochs=2",
        "--save_every_env_steps=5000",
        "--seed=7",
    )
    command.wait_until(lambda: command.checkpoint() is not None, "a checkpoint is saved")
    command.process.kill()
    command.finish()
    newest = command.checkpoint()
    steps = checkpoint.saved_env_steps(newest)
    with (command.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"env_steps": steps + 10**6}) + "\n")  # a record of what was lost

    target = steps + 3000
    code, _, err = train(start, f"--train_for_env_steps={target}", "--learning_rate=0.0005")
    assert code == 0, err
    assert f"Resuming from runs/run/checkpoints/{newest.name} ({steps:,} steps)" in err
    assert "  learning_rate: 0.0003 -> 0.0005" in err
    summary = command.summary()
    assert summary["status"] == "completed"
    assert target <= summary["env_steps"] < target + 64
    recorded = [record["env_steps"] for record in command.records()]
    assert max(recorded) <= summary["env_steps"]
    content = checkpoint.load(command.checkpoint())
    state = content.state
    assert state["num_samples"] == 2 * summary["env_steps"]  # two passes, before and after
    assert state["policy_version"] == int(content.optimizer["step"]) > 2 * steps // 32
    assert state["config"]["seed"] == 7

    code, _, err = train(start)
    assert code == 0
    assert err.count("Nothing to do") == 1


def test_updates_that_a_run_owes_for_its_last_steps_are_made_when_it_goes_on(start: Callable[..., Command]) -> None:
    small = ("--algo=sac", "--batch_size=8", "--encoder_mlp_layers=[8]", "--warmup_env_steps=100", "--replay_size=2000")
    owing = ("--train_for_env_steps=300", "--updates_per_env_step=20", "--replay_ratio_tolerance=1e6", "--save_replay")
    fixed = ("--num_workers=1", "--num_envs_per_worker=4", "--learner_threads=1", "--report_every_s=0.2")
    command = start("asyncrl.train", "--env=CartPole-v1", *small, *owing, *fixed)
    command.wait_until(
        lambda: any(record["env_steps"] >= 300 for record in command.records()), "all steps are made, long before"
    )
    command.process.terminate()
    assert command.finish()[0] == 143
    state = checkpoint.load_state(command.checkpoint())
    steps, updates = state["env_steps"], state["policy_version"]
    assert steps >= 300
    assert state["updates_due"] == 20 * (steps - 100) - updates > 0

    code, _, err = train(start)
    assert code == 0, err
    assert "Nothing to do" not in err
    state = checkpoint.load_state(command.checkpoint())
    assert (state["env_steps"], state["policy_version"], state["updates_due"]) == (steps, 20 * (steps - 100), 0)
    assert "Nothing to do" in train(start)[2]


def test_a_run_that_saved_nothing_begins_anew_and_says_so(start: Callable[..., Command]) -> None:
    command = start("asyncrl.train", "--env=CartPole-v1", *PROBE, "--seed=5")
    command.wait_until_trained()
    command.process.kill()
    command.finish()
    code, _, err = train(start, "--train_for_env_steps=500", "--encoder_mlp_layers=[8]")
    assert code == 0, err
    assert "No checkpoint yet: starting at step 0 with the settings in config.yaml." in err
    assert "encoder_mlp_layers: [16] -> [8]" in err
    assert max(record["env_steps"] for record in command.records()) == command.summary()["env_steps"]
    # Of a run too short for a window of episodes the last policy is the best.
    best = asyncrl.load_policy(command.folder, which="best").config
    assert (best.seed, best.encoder_mlp_layers) == (5, [8])


def test_the_learning_rate_in_force_is_the_one_asked_for(start: Callable[..., Command]) -> None:
    decaying = ("--learning_rate=0.002", "--lr_schedule=linear_decay")
    assert train(start, "--env=CartPole-v1", *PROBE, *decaying, "--train_for_env_steps=1000")[0] == 0
    command = start("asyncrl.train", "--lr_schedule=constant", "--train_for_env_steps=2000")
    assert command.finish()[0] == 0
    rates = [record["train/learning_rate"] for record in command.records() if "train/learning_rate" in record]
    assert rates[-1] == pytest.approx(0.002)
