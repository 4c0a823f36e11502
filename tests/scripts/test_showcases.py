"""Showcases: whose turn a stretch is, where it begins, and what a stop or a failure leaves."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import showcases
from showcases import SHOWCASES, Showcase

from asyncrl.analysis.benchmark.watch import TaskFailed
from asyncrl.config.loading import load


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run; they only write what Stable-Baselines3's driver writes."""
    made: list[list[str]] = []

    def run_watched(command: list[str], log: Path, timeout_s: float) -> None:
        made.append(command)
        if command[-3] == "train":
            folder, number = Path(command[-2]), len(made)
            (folder / "policies").mkdir(parents=True)
            (folder / "policies" / f"policy_{100 * number}.zip").touch()
            points = [(10.0, 0, None), (15.0, 100 * number, -21.0 + number)]
            lines = [
                json.dumps(dict(zip(("time_s", "env_steps", "mean_return"), each, strict=True))) for each in points
            ]
            (folder / "curve.jsonl").write_text("\n".join(lines))

    monkeypatch.setattr(showcases, "run_watched", run_watched)
    monkeypatch.setattr(showcases, "python_of", lambda peer, work_dir: Path("python"))
    return made


def showcase_of(folder: Path, minutes: float, *names: str) -> Showcase:
    options = argparse.Namespace(work_dir=folder, minutes=minutes, stretch_minutes=1.0, seed=3)
    return Showcase("pong", [system for system in SHOWCASES["pong"] if system.name in names], options)


def options_of(command: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command[-1])
    return found


def test_systems_take_turns_and_each_stretch_continues_the_one_before(tmp_path: Path, commands: Any) -> None:
    showcase = showcase_of(tmp_path, 2.0, "a3c", "sb3_a2c")
    assert showcase.make()
    assert [[flag for flag in each if "seconds" in flag] for each in commands[::2]] == [
        ["--train_for_seconds=60"],
        ["--train_for_seconds=120"],
    ]
    first, second = options_of(commands[1]), options_of(commands[3])
    assert "start_from" not in first
    assert Path(second["start_from"]) == tmp_path / "pong/sb3_a2c/stretch_0/policies/policy_200.zip"
    assert showcase.make() and len(commands) == 4, "finished stretches are not repeated"
    assert showcase.curve(SHOWCASES["pong"][-1]) == [(5.0, 200, -19.0), (65.0, 400, -17.0)]

    assert showcase_of(tmp_path, 3.0, "a3c").make()
    assert [flag for flag in commands[-1] if "seconds" in flag] == ["--train_for_seconds=180"]
    assert showcase_of(tmp_path, 3.5, "a3c").make()
    assert [flag for flag in commands[-1] if "seconds" in flag] == ["--train_for_seconds=210"], "the rest only"


def test_a_stretch_that_was_stopped_is_made_again_to_the_same_end(
    tmp_path: Path, commands: Any, monkeypatch: Any
) -> None:
    showcase, run = showcase_of(tmp_path, 1.0, "a3c"), showcases.run_watched

    def stop(command: list[str], log: Path, timeout_s: float) -> None:
        run(command, log, timeout_s)
        raise KeyboardInterrupt

    monkeypatch.setattr(showcases, "run_watched", stop)
    with pytest.raises(KeyboardInterrupt):
        showcase.make()
    monkeypatch.setattr(showcases, "run_watched", run)
    assert showcase.make()
    assert commands[0] == commands[1]


def test_a_system_that_fails_does_not_hold_up_the_others(tmp_path: Path, commands: Any, monkeypatch: Any) -> None:
    run = showcases.run_watched

    def fail(command: list[str], log: Path, timeout_s: float) -> None:
        if "--algo=a3c" in command:
            raise TaskFailed("as asked")
        run(command, log, timeout_s)

    monkeypatch.setattr(showcases, "run_watched", fail)
    assert not showcase_of(tmp_path, 2.0, "a3c", "ppo").make()
    assert len(commands) == 2 and all("--algo=ppo" in command for command in commands)


@pytest.mark.parametrize("system", [each for systems in SHOWCASES.values() for each in systems if each.flags])
def test_the_settings_of_each_run_are_possible(system: Any) -> None:
    config = load([*system.flags]).config
    is_hogwild = system.name in ("sac", "a3c", "hogwild_ppo")
    assert config.backend == ("hogwild" if is_hogwild else "actor_learner")
    if system.name == "a3c":
        assert (config.hogwild_mode, config.rollout, config.reward_clip) == ("synced", 16, 1.0)
        assert (config.hogwild_optimizer, config.hogwild_max_staleness) == ("rmsprop", 0)
        assert config.entropy_loss_coeff == 0.01, "not that of A2C with a learner"
