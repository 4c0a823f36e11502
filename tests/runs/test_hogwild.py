"""Whole Hogwild runs: on environments whose right answer is known, stopped and resumed, and with dying workers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from run_helper import FinishedRun, mean_return, run
from sac_runs import GREEDY, SAC, learner_of, values
from unavoidable import needs_cuda

from asyncrl.buffers.shared_tensors import saved_worker_steps
from asyncrl.inference.policy import load_policy
from asyncrl.observers.reports import RolloutReport
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

in_each_mode = pytest.mark.parametrize("mode", ["shared", "synced", "gradients"])

A2C: dict[str, Any] = {
    "backend": "hogwild",
    "algo": "a2c",
    "num_epochs": 1,
    "train_for_env_steps": 8000,
    "lr_schedule": "linear_decay",
    "max_grad_norm": 1.0,
}
PPO: dict[str, Any] = {**A2C, "algo": "ppo", "num_epochs": 4, "batch_size": 32}
ALGORITHMS = {"a2c": A2C, "ppo": PPO}


def hogwild(folder: Path, mode: str, env: str, **settings: Any) -> FinishedRun:
    return run(folder, "async-local", env, hogwild_mode=mode, **settings)


@in_each_mode
def test_a_contextual_bandit_is_solved(mode: str, tmp_path: Path) -> None:
    trained = hogwild(tmp_path, mode, "ContextualBandit", **A2C)
    policy = load_policy(Path(trained.outcome.checkpoint))
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]


@in_each_mode
def test_ppo_finds_values_in_common_units_of_returns(mode: str, tmp_path: Path) -> None:
    settings = {**PPO, "gamma": 0.8, "train_for_env_steps": 6000, "env_kwargs": {"terminates": False}}
    trained = hogwild(tmp_path, mode, "EndlessReward", **settings)
    assert trained.values([0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -1.0], abs=0.35)


def test_a_policy_answers_an_image(tmp_path: Path) -> None:
    settings = {**PPO, "rollout": 20, "entropy_loss_coeff": 0.01, "gamma": 0.0, "num_envs_per_worker": 4}
    settings |= {"learning_rate": 0.003, "encoder_conv_mlp_layers": [16], "train_for_env_steps": 800}
    finished = hogwild(tmp_path, "synced", "space_envs:LitSide-v0", **settings)
    assert mean_return(finished) > 0.95  # without the image a half is chance


@pytest.mark.parametrize(
    ("mode", "hogwild_mode"),
    [("serial", "shared"), ("async-local", "synced")],
)
def test_sac_finds_values_with_two_workers(mode: str, hogwild_mode: str, tmp_path: Path) -> None:
    own = {"backend": "hogwild", "hogwild_mode": hogwild_mode}
    settings = {**GREEDY, **own, "num_envs_per_worker": 1, "train_for_env_steps": 1000}
    endless = run(tmp_path, mode, "EndlessReward", **settings, env_kwargs={"terminates": False})
    assert values(endless, [0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -1.0], abs=0.4)
    updates = learner_of(endless).policy_version
    of_workers = saved_worker_steps(checkpoint.load_state(Path(endless.outcome.checkpoint)))
    assert updates == pytest.approx(sum(max(0, num_steps - 100) for num_steps in of_workers), abs=8)


def test_sac_finds_actions_with_two_workers(tmp_path: Path) -> None:
    own = {"backend": "hogwild", "hogwild_mode": "synced"}
    settings = {**SAC, **own, "ent_coef": 0.1, "train_for_env_steps": 1500, "reward_scale": 0.1}
    distant = run(tmp_path, "async-local", "DistantTarget", **settings)
    assert load_policy(Path(distant.outcome.checkpoint)).act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.4)


def test_the_entropy_coefficient_and_the_targets_are_those_of_all_workers(tmp_path: Path) -> None:
    settings = {**SAC, "backend": "hogwild", "tau": 1.0, "train_for_env_steps": 400}
    optimizer = checkpoint.load(Path(run(tmp_path, "serial", "DistantTarget", **settings).outcome.checkpoint)).optimizer
    # With tau 1 the targets are the critics as the last update of any worker left them.
    assert torch.equal(optimizer["target_critic"], optimizer["critic.value.0"])
    assert float(optimizer["log_ent_coef"]) != 0.0


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_workers_keep_a_bound_of_staleness(algo: str, tmp_path: Path) -> None:
    settings = {
        **(PPO if algo == "ppo" else {**SAC, "backend": "hogwild"}),
        "train_for_env_steps": 1500 if algo == "ppo" else 700,
    }
    settings |= {"num_workers": 4, "num_envs_per_worker": 1, "hogwild_max_staleness": 1}
    finished = run(tmp_path, "async-local", "ContextualBandit", **settings)
    found = [report.staleness for report in finished.reports if isinstance(report, RolloutReport)]
    counts = sum((Counter(each.counts) for each in found if each is not None), Counter())
    assert max(counts) <= 1
    assert sum(counts.values()) == finished.learner_reports[-1].num_updates > 0
    assert sum(each.num_recomputed for each in found if each is not None) > 0


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_serial_run_repeats_to_the_bit(algo: str, tmp_path: Path) -> None:
    settings = {**ALGORITHMS[algo], "train_for_env_steps": 2000}
    runs = [run(tmp_path / name, "serial", "CartPole-v1", **settings) for name in "ab"]
    first, second = (checkpoint.load(Path(finished.outcome.checkpoint)) for finished in runs)
    assert all(torch.equal(tensor, second.model[name]) for name, tensor in first.model.items())


@pytest.mark.parametrize("algo", ["a2c", "sac"])
def test_a_resumed_run_counts_on(algo: str, tmp_path: Path) -> None:
    settings = {**(A2C if algo == "a2c" else SAC), "backend": "hogwild", "normalize_input": True}
    settings["train_for_env_steps"] = 2000 if algo == "a2c" else 500
    first = run(tmp_path / "first", "async-local", "ContextualBandit", **settings)
    path = Path(first.outcome.checkpoint)
    # The workers start at different times, and A2C makes 10,000 steps a second: one may make all steps of a run.
    settings["train_for_env_steps"] = num_steps = 12_000 if algo == "a2c" else 1200
    second = run(tmp_path / "second", "async-local", "ContextualBandit", resume_from=path, **settings)
    before, after = (checkpoint.load(Path(finished.outcome.checkpoint)).state for finished in (first, second))
    assert num_steps <= after["env_steps"] < num_steps + 200
    counts = saved_worker_steps(before), saved_worker_steps(after)
    assert [len(steps) for steps in counts] == [2, 2]
    assert [sum(steps) for steps in counts] == [before["env_steps"], after["env_steps"]]
    assert all(now >= then for then, now in zip(*counts, strict=True))
    made = after["policy_version"] - before["policy_version"]
    expected = (after["env_steps"] - before["env_steps"]) / 64 if algo == "a2c" else 700 - 200
    assert made == pytest.approx(expected, rel=0.1)
    assert after["obs_count"] > before["obs_count"]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("algo", "mode"), [("a2c", "shared"), ("a2c", "synced"), ("a2c", "gradients"), ("sac", "shared")]
)
def test_workers_whose_networks_are_on_a_gpu_train_to_the_end(
    algo: str, mode: str, start: Callable[..., Command]
) -> None:
    command = start(
        "asyncrl.train", "--env=CartPole-v1", f"--algo={algo}", "--backend=hogwild", f"--hogwild_mode={mode}",
        "--device=cuda", "--num_workers=2", "--train_for_env_steps=3000", "--with_tensorboard=False",
    )  # fmt: skip
    code, _, stderr = command.finish()
    assert code == 0, stderr
    assert json.loads((command.folder / "summary.json").read_text())["num_updates"] > 10
