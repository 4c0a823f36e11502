"""Schedules follow the nearer limit of a run, steps or seconds; in one process, with a clock that each look moves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import PROBE, Command

from asyncrl import train, validate
from asyncrl.learner import worker as worker_module
from asyncrl.learner.optimizer import LearningRate

DATASETS = ("--batch_size=32", "--num_batches_per_epoch=1", "--rollout=8", "--num_epochs=2", "--num_envs_per_worker=4")
REPLAY = ("--batch_size=8", "--warmup_env_steps=16", "--num_envs_per_worker=1", "--learning_rate=0.01")
DQN = ("--env=CartPole-v1", "--algo=dqn", *REPLAY)
PPO = ("--env=CartPole-v1", *DATASETS, "--learning_rate=0.01")
LINEAR = "--lr_schedule=linear_decay"
FAMILIES = {
    "ppo": (*PPO, LINEAR),
    "tensors": (
        "--env=tensor_envs:TensorCartPole-v0",
        "--env_backend=tensor",
        *DATASETS,
        "--learning_rate=0.01",
        LINEAR,
    ),
    "two policies": ("--env=agent_envs:opposed", "--num_policies=2", *DATASETS, "--learning_rate=0.01", LINEAR),
    "sac": ("--env=Pendulum-v1", "--algo=sac", *REPLAY, LINEAR),
    "td3": ("--env=Pendulum-v1", "--algo=td3", *REPLAY, LINEAR),
    "a3c": (
        "--env=CartPole-v1",
        "--algo=a3c",
        *DATASETS[2:3],
        "--num_envs_per_worker=2",
        "--learning_rate=0.01",
        LINEAR,
    ),
    "gradients": (*PPO, "--backend=hogwild", "--hogwild_mode=gradients", "--async_rl=False", LINEAR),
    "hogwild sac": ("--env=Pendulum-v1", "--algo=sac", "--backend=hogwild", *REPLAY, LINEAR),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The learner's clock, which moves by a hundredth of a second with each look at it."""

    def look() -> float:
        fake.now += 0.01
        return fake.now

    fake = SimpleNamespace(now=1000.0, monotonic=look)
    monkeypatch.setattr(worker_module, "time", fake)
    return fake


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each dataset, or series of updates."""
    seen: list[float] = []
    start_dataset = LearningRate.start_dataset

    def noting(rate: LearningRate, *args: Any) -> None:
        start_dataset(rate, *args)
        seen.append(rate.value)

    monkeypatch.setattr(LearningRate, "start_dataset", noting)
    return seen


def run(folder: Path, *flags: str, seconds: float | None = 2.0) -> None:
    limit = () if seconds is None else (f"--train_for_seconds={seconds:g}",)
    small = ("--encoder_mlp_layers=[8]", "--num_workers=1", "--serial_mode=True", "--preset=none", "--quiet")
    assert train.main([f"--train_dir={folder}", "--experiment=run", *small, *flags, *limit]) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_schedule_ends_with_the_run_when_seconds_are_the_nearer_limit(
    family: str, tmp_path: Path, rates: list[float]
) -> None:
    run(tmp_path, *FAMILIES[family], seconds=8.0 if family == "two policies" else 2.0)
    assert len(rates) > 5 and rates[0] <= 0.01
    assert min(rates) == rates[-1] < 0.001, "a tenth of the first"
    if family != "two policies":  # each follows its own clock
        assert rates == sorted(rates, reverse=True), "it never goes back"


@pytest.mark.parametrize("flags", [(*PPO, LINEAR), (*DQN, LINEAR)], ids=["ppo", "dqn"])
def test_a_resumed_run_counts_the_seconds_that_it_was_trained_before(
    flags: tuple[str, ...], tmp_path: Path, rates: list[float]
) -> None:
    run(tmp_path, *flags, seconds=2.0)
    rates.clear()
    run(tmp_path, *flags, seconds=4.0)
    assert 0.003 < rates[0] <= 0.005, "at half of the run"
    assert rates[-1] < 0.001


def test_steps_lead_where_they_are_the_nearer_limit(tmp_path: Path, rates: list[float]) -> None:
    run(tmp_path / "both", *PPO, LINEAR, "--train_for_env_steps=320", seconds=1e6)
    both = rates.copy()
    rates.clear()
    run(tmp_path / "steps", *PPO, LINEAR, "--train_for_env_steps=320", seconds=None)
    assert both == rates and len(rates) >= 10


def test_hogwild_processes_follow_the_clock_of_the_parameter_server(tmp_path: Path, leaves_nothing: None) -> None:
    flags = (*PROBE, "--env=CartPole-v1", "--algo=a3c", "--learning_rate=0.01", LINEAR, "--train_for_seconds=2")
    command = Command("asyncrl.train", *flags, cwd=tmp_path)
    try:
        code, _, errors = command.finish()
    finally:
        command.kill()
    assert code == 0, errors
    seen = [record["train/learning_rate"] for record in command.records() if "train/learning_rate" in record]
    assert seen[-1] < 0.005 and seen == sorted(seen, reverse=True)
    lines = [line for line in errors.splitlines() if "schedules end" in line]
    assert len(lines) == 1 and "2 seconds" in lines[0] and "10,000,000 steps" in lines[0]


def test_the_plan_says_which_limit_schedules_follow(capfd: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--env=CartPole-v1", "--algo=dqn", "--train_for_seconds=25"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("schedules:")]
    assert [line.split(None, 1)[1] for line in lines] == [
        "end after 25 seconds, or after 10,000,000 steps of a run with more than 400,000 steps/s"
    ]
    assert validate.main(["--env=CartPole-v1", "--algo=dqn"]) == 0
    assert "schedules:" not in capfd.readouterr().out
