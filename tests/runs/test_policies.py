"""Whole runs that train several policies at once."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Command
from killing import pids
from run_helper import GAMES, FinishedRun, run

import asyncrl
from asyncrl.evaluation.episodes import evaluate
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.observers.reports import CheckpointReport, EvaluationReport, RolloutReport
from asyncrl.storage import checkpoint
from asyncrl.storage.locating import policy_folder
from asyncrl.validate import main as validate

# Ratios to the policy that acted, which `first_ratios` checks.
SETTINGS: dict[str, Any] = {**GAMES, "ppo_objective": "clip", "batch_size": 64}


def policy_of(finished: FinishedRun, policy_idx: int) -> Policy:
    newest = checkpoint.latest(policy_folder(finished.folder / "checkpoints", policy_idx))
    assert newest is not None
    return load_policy(newest)


def first_ratios(finished: FinishedRun) -> float:
    """How far the first ratio of any dataset is from 1, at most."""
    trained = [report.train for report in finished.learner_reports if report.train is not None]
    return max(metrics.max_ratio_deviation_first_batch for metrics in trained)


@pytest.mark.parametrize("mode", ["sync-central", "async-local"])
def test_policies_with_opposite_rewards_learn_the_opposite(tmp_path: Path, mode: str) -> None:
    settings = {**SETTINGS, "train_for_env_steps": 3000, "num_policies": 2, "policy_mapping": "independent"}
    finished = run(tmp_path, mode, "agent_envs:opposed", **settings)
    first, second = policy_of(finished, 0), policy_of(finished, 1)
    result = evaluate(first, episodes=10, deterministic=True, others=[second], choose=lambda agent, _: agent)
    assert result.returns_by_agent == {"agent_0": (5.0,) * 10, "agent_1": (5.0,) * 10}
    swapped = evaluate(second, episodes=10, deterministic=True, others=[first], choose=lambda agent, _: agent)
    assert swapped.mean_reward == 0.0
    if mode.startswith("sync"):
        # Each row was acted by the policy that trains on it, with the weights that it has now.
        assert first_ratios(finished) < 1e-4
        assert finished.largest_lag == 0


class TakeOver(asyncrl.Observer):
    """Lets the second policy continue with the weights of the first, once, and stops the run a while later."""

    def __init__(self) -> None:
        self.at: int | None = None

    def on_record(self, run: asyncrl.Run, record: Any) -> None:
        if self.at is None:
            self.at = record.env_steps
            run.adopt_weights(1, 0)
        elif record.env_steps > self.at + 1000:
            run.stop()


def test_an_observer_gives_a_policy_the_weights_of_another_one(tmp_path: Path) -> None:
    config = asyncrl.TrainConfig(
        env="agent_envs:take_turns",
        num_policies=2,
        policy_mapping="random",
        num_workers=2,
        learning_rate=0.0,
        train_for_env_steps=10**6,
        train_dir=str(tmp_path),
        experiment="run",
        report_every_s=0.1,
        with_tensorboard=False,
        **SETTINGS,
    )
    folder = asyncrl.Trainer(config, callbacks=[TakeOver()]).run().folder
    paths = [checkpoint.latest(policy_folder(folder / "checkpoints", idx)) for idx in range(2)]
    first, second = (checkpoint.load(path).model for path in paths if path is not None)
    assert torch.equal(first["policy_head.weight"], second["policy_head.weight"])


@pytest.mark.parametrize(
    ("mode", "use_rnn", "num_policies", "env_steps"), [("sync-local", True, 2, 3000), ("async-central", False, 3, 6000)]
)
def test_a_map_drawn_for_each_episode_gives_each_policy_its_own_rows(
    tmp_path: Path, mode: str, use_rnn: bool, num_policies: int, env_steps: int
) -> None:
    settings = {**SETTINGS, "train_for_env_steps": env_steps, "num_policies": num_policies, "policy_mapping": "random"}
    settings |= {"use_rnn": use_rnn, "rnn_size": 8, "num_epochs": 2, "learning_rate": 0.02}
    finished = run(tmp_path, mode, "agent_envs:take_turns", **settings)
    if mode == "sync-local":
        assert first_ratios(finished) < 1e-4
    for policy_idx in range(num_policies):
        result = evaluate(policy_of(finished, policy_idx), episodes=10, deterministic=True)
        assert result.returns_by_agent == {"first": (3.0,) * 10, "second": (2.0,) * 10}
    steps = {report.policy_idx: report.agent_steps for report in finished.learner_reports}
    assert min(steps.values()) > 0.5 * max(steps.values())
    played = [
        each.policy_idx for report in finished.reports if isinstance(report, RolloutReport) for each in report.episodes
    ]
    assert set(played) == set(range(num_policies))


@pytest.mark.parametrize("mode", ["sync-local", "async-local"])
def test_a_policy_that_is_seldom_drawn_blocks_no_other(tmp_path: Path, mode: str) -> None:
    mapping = {"num_policies": 2, "policy_mapping": "agent_envs:seldom_the_second"}
    finished = run(tmp_path, mode, "agent_envs:own_bits", **{**SETTINGS, "train_for_env_steps": 3000, **mapping})
    assert finished.outcome.error is None and finished.outcome.env_steps >= 3000
    steps = {report.policy_idx: report.agent_steps for report in finished.learner_reports}
    assert steps[0] > 7500
    assert steps.get(1, 0) < 0.03 * steps[0]
    assert evaluate(policy_of(finished, 0), episodes=5, deterministic=True).returns_by_agent["agent_1"] == (5.0,) * 5


def test_policies_have_settings_weights_and_checkpoints_of_their_own(tmp_path: Path) -> None:
    own = {1: {"learning_rate": 0.0, "encoder_mlp_layers": [4, 4]}}
    settings = {**SETTINGS, "train_for_env_steps": 3000, "num_policies": 2, "policies": own}
    finished = run(tmp_path, "async-local", "agent_envs:own_bits", **settings)
    first, second = policy_of(finished, 0), policy_of(finished, 1)
    assert (first.config.learning_rate, second.config.learning_rate) == (0.01, 0.0)
    assert second.config.encoder_mlp_layers == [4, 4]
    assert evaluate(first, episodes=5, deterministic=True).mean_reward > 6.0
    assert evaluate(second, episodes=20).mean_reward < 5.0
    states = [
        json.loads(path.read_text()) for path in (tmp_path / "checkpoints").glob("policy_*/checkpoint_*/state.json")
    ]
    assert len(states) == 2


def test_policies_begin_with_weights_of_their_own(tmp_path: Path) -> None:
    settings = {**SETTINGS, "train_for_env_steps": 64, "num_policies": 3, "learning_rate": 0.0}
    finished = run(tmp_path, "serial", "agent_envs:own_bits", **settings)
    folders = [policy_folder(finished.folder / "checkpoints", idx) for idx in range(3)]
    models = [checkpoint.load(checkpoint.newest_first(folder)[0]).model for folder in folders]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(models[one]["policy_head.weight"], models[other]["policy_head.weight"])


def test_a_run_of_several_policies_goes_on(tmp_path: Path) -> None:
    settings = {**SETTINGS, "num_policies": 2}
    finished = run(tmp_path, "async-local", "agent_envs:own_bits", **{**settings, "train_for_env_steps": 1500})
    folder = finished.folder / "checkpoints"
    newest = [checkpoint.latest(policy_folder(folder, idx)) for idx in range(2)]
    starts = [(path, int(checkpoint.load_state(path)["policy_env_steps"])) for path in newest if path is not None]
    total = sum(env_steps for _, env_steps in starts)
    assert len(starts) == 2 and 1500 <= total < 1700
    longer = {**settings, "train_for_env_steps": 3000}
    resumed = run(tmp_path, "async-local", "agent_envs:own_bits", policy_starts=starts, **longer)
    assert 3000 <= resumed.outcome.env_steps < 3200
    by_policy = {report.policy_idx: report for report in reversed(resumed.learner_reports)}
    assert min(report.env_steps for report in by_policy.values()) > 1500
    assert evaluate(policy_of(resumed, 1), episodes=5, deterministic=True).mean_reward == pytest.approx(20 / 3)


def test_policies_that_have_saved_at_different_times_end_at_the_same_one(tmp_path: Path) -> None:
    settings = {**SETTINGS, "num_policies": 2}
    finished = run(tmp_path, "serial", "agent_envs:own_bits", **{**settings, "train_for_env_steps": 200})
    starts = []
    for idx in range(2):
        folder = policy_folder(finished.folder / "checkpoints", idx)
        content = checkpoint.load(checkpoint.newest_first(folder)[0])
        older = {**content.state, "elapsed_s": 500.0 if idx == 0 else 1.0}
        saved = checkpoint.save(folder, dataclasses.replace(content, state=older), 300, keep=2)
        starts.append((saved, int(older["policy_env_steps"])))
    started = time.monotonic()
    limits = {"train_for_env_steps": 10**9, "train_for_seconds": 501.0}
    run(tmp_path, "async-local", "agent_envs:own_bits", policy_starts=starts, **{**settings, **limits})
    assert time.monotonic() - started < 100.0


def test_each_policy_is_evaluated_as_the_agents_that_it_plays(tmp_path: Path) -> None:
    mapping = {"num_policies": 2, "policy_mapping": "independent"}
    evaluation = {"eval_every_env_steps": 1500, "eval_deterministic": True, "train_for_env_steps": 3000}
    finished = run(tmp_path, "async-local", "agent_envs:opposed", **{**SETTINGS, **mapping, **evaluation})
    reports = [report for report in finished.reports if isinstance(report, EvaluationReport)]
    last = {report.policy_idx: report for report in reports}
    # Each policy in its own place: in that of the other, or in both, the opposite of what it learned would be paid.
    assert {idx: report.mean_reward for idx, report in last.items()} == {0: 5.0, 1: 5.0}
    bests = {each.policy_idx: each for each in finished.reports if isinstance(each, CheckpointReport)}
    for policy_idx in range(2):
        folder = policy_folder(finished.folder / "checkpoints", policy_idx)
        assert checkpoint.best_return(folder) == 5.0
        best = load_policy(checkpoint.newest_first(folder / "best")[0])
        played = evaluate(best, episodes=5, deterministic=True).returns_by_agent
        assert played[f"agent_{policy_idx}"] == (5.0,) * 5 and played[f"agent_{1 - policy_idx}"] == (0.0,) * 5
    assert set(bests) == {0, 1}


def test_a_policy_that_plays_all_agents_is_evaluated_so(tmp_path: Path) -> None:
    own = {1: {"learning_rate": 0.0}}
    settings = {**SETTINGS, "num_policies": 2, "policies": own, "train_for_env_steps": 2500, "serial_mode": True}
    finished = run(tmp_path, "serial", "agent_envs:own_bits", **settings, eval_every_env_steps=2500)
    last = {each.policy_idx: each for each in finished.reports if isinstance(each, EvaluationReport)}
    assert last[0].mean_reward > 6.0 > 5.0 > last[1].mean_reward


def test_serial_mode_with_several_policies_repeats_to_the_bit(tmp_path: Path) -> None:
    settings = {**SETTINGS, "num_policies": 3, "train_for_env_steps": 1500, "async_rl": True}
    runs = [run(tmp_path / name, "serial", "agent_envs:take_turns", **settings) for name in ("one", "two")]
    assert runs[0].outcome.env_steps == runs[1].outcome.env_steps >= 1500
    assert {report.policy_idx for report in runs[0].learner_reports} == {0, 1, 2}
    for policy_idx in range(3):
        one, two = ([*policy_of(each, policy_idx)._model.state_dict().values()] for each in runs)
        assert all(bool((left == right).all()) for left, right in zip(one, two, strict=True))


def test_a_killed_worker_costs_the_policies_nothing_and_a_killed_learner_ends_the_run(
    start: Callable[..., Command],
) -> None:
    def steps_of_policies() -> list[float]:
        record = training.records()[-1]
        return [record.get(f"policy_{idx}/time/total_agent_steps", 0.0) for idx in range(3)]

    several = ("--env=CartPole-v1", "--num_policies=3", "--train_for_env_steps=100000000", "--report_every_s=0.2")
    training = start("asyncrl.train", *several)
    training.wait_until(
        lambda: any("policy_2/train/loss" in record for record in training.records()), "all are trained"
    )
    log = training.folder / "logs" / "rollout-0.log"
    os.kill(pids(log)[-1], signal.SIGKILL)
    training.wait_until(lambda: len(pids(log)) == 2, "another worker is in its place")
    before = steps_of_policies()
    training.wait_until(
        lambda: all(now > then + 1000 for then, now in zip(before, steps_of_policies(), strict=True)), "all learn on"
    )
    os.kill(pids(training.folder / "logs" / "learner-1.log")[-1], signal.SIGKILL)
    code, _, stderr = training.finish()
    assert code == 1
    assert "rollout worker 0 died" in stderr
    assert "learner of policy 1 died: SIGKILL" in stderr
    summary = training.summary()
    assert summary["restarts"] == 1
    assert len(summary["ep_rew_mean_of_policies"]) == 3
    for policy_idx in (0, 2):  # the others have saved
        assert checkpoint.latest(policy_folder(training.folder / "checkpoints", policy_idx)) is not None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--algo=sac",), "--num_policies=2 cannot be used with --algo=sac"),
        (("--serial_mode=True", "--checkpoint_resets=True"), "--checkpoint_resets is not available with"),
        (("--policy.1.gama=0.9",), "There is no flag --policy.1.gama; the nearest is --policy.1.gamma"),
        (("--policy.1.rollout=8",), "--policy.1.rollout is not possible: only settings of learning and of the model"),
        (("--policy.1.action_unit=raw",), "--policy.1.action_unit is not possible: it is the same for all policies"),
        (
            ("--use_rnn=True", "--policy.1.actor_critic_share_weights=True"),
            "is not possible with --use_rnn=True: all policies have as many recurrent cores",
        ),
        (
            ("--policy.1.initial_stddev=0.1", "--final_stddev=0.3"),
            "Policy 1: --final_stddev=0.3 is greater than --initial_stddev=0.1. Would pass: --policy.1.initial_stddev=",
        ),
        (("--policy.2.gamma=0.9",), "policy 2 does not exist (policies are 0 to 1)"),
        (("--policy.1.gamma=3",), "--policy.1.gamma=3 is not possible: expected a number at least 0 and at most 1"),
        (("--policy_mapping=independent",), "independent needs one policy for each agent"),
        (("--policy_mapping=nothing",), "is not shared, by_space, independent, random or module:function"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], text: str) -> None:
    assert validate(["--env=CartPole-v1", "--num_policies=2", *flags]) == 2
    assert text in capsys.readouterr().err
