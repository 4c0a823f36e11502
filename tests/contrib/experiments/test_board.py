"""The table and the lines that show many runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.config.machine import Machine
from asyncrl.contrib.experiments import board
from asyncrl.contrib.experiments.board import Board
from asyncrl.contrib.experiments.runs import PlannedRun, plan_run


@pytest.fixture
def run(tmp_path: Path) -> PlannedRun:
    name = "CartPole-v1_ppo_learning_rate-0.001_batch_size-256_seed3"
    planned = plan_run(name, tmp_path, ("--env=CartPole-v1", "--train_for_env_steps=1000"), Machine(cores=2))
    planned.folder.path.mkdir()
    records = [
        {"env_steps": 500, "rollout/ep_rew_mean": 12.34, "time/fps": None},
        {"env_steps": 400, "eval/mean_reward": 9},
    ]
    planned.folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"env_steps": 9')
    return planned


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_table_fits_the_terminal_and_shows_the_newest_figures(run, width, height) -> None:
    console = Console(width=width, height=height, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(board._table("title", [(run, "training")] * 100, width, height))
    lines = console.export_text().splitlines()
    assert len(lines) <= height and all(len(line.rstrip()) <= width for line in lines)
    assert lines[3].split()[1:] == ["training", "500", "50%", "-", "12.3", "9.0"]
    assert lines[3].startswith("CartPole-v1") and "_seed3" in lines[3]
    assert lines[-1].startswith("and ")


def test_without_a_terminal_lines_are_printed_now_and_then(run, capsys, monkeypatch) -> None:
    with Board() as shown:
        shown.show("1 training", [(run, "training")])
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(shown, "_lines_at", 0.0)
        shown.show("1 training", [(run, "training")])
        shown.show("1 training", [(run, "training")])
    text = f"  {run.name}: training, 500 steps (50%), - steps/s, training return 12.3, evaluation return 9.0"
    assert capsys.readouterr().out.splitlines() == ["1 training", text]
