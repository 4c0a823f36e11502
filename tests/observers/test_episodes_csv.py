"""Episodes as CSV: what Stable-Baselines3's reader finds in the files is what ended."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from asyncrl import Observer, TrainConfig, Trainer
from asyncrl.observers.observer import Run
from asyncrl.observers.reports import EpisodeRecord
from asyncrl.observers.status import Record
from asyncrl.observers.writers import EpisodesCsv
from asyncrl.storage.run_folder import RunFolder

EPISODES = [
    EpisodeRecord(1.5, 3),
    EpisodeRecord(-2.25, 4, {"height, m": 7.5}),
    EpisodeRecord(3.0, 5),
    EpisodeRecord(4.0, 6, {"is_success": 1.0}),
    EpisodeRecord(5.0, 7, {"height, m": 8.5, "is_success": 0.0}),
]


def write(
    folder: Path, episodes: list[EpisodeRecord], num_policies: int = 1, first_step: int = 1, others: Sequence[Any] = ()
) -> None:
    """Writes episodes, each one environment step of the run after the one before."""
    run = Run([EpisodesCsv(), *others])
    run.config, run.folder, run.plan = TrainConfig(env="CartPole-v1"), folder, mock.Mock(num_policies=num_policies)
    run.notify(Observer.on_start)
    for run.env_steps, episode in enumerate(episodes, start=first_step):
        run.notify(Observer.on_episode, episode)
        run.notify(Observer.on_record, Record(1, {}))
    run.notify(Observer.on_end, mock.Mock())
    assert run.failure is None


def read(folder: Path) -> list[dict[str, str]]:
    """Rows of all files in their order, without their times and steps."""
    rows = []
    for path in sorted((folder / "episodes").iterdir()):
        first, _, table = path.read_text().partition("\n")
        assert json.loads(first[1:])["env_id"] == "CartPole-v1" and first[0] == "#"
        rows += [
            {name: cell for name, cell in row.items() if name not in ("t", "env_steps")}
            for row in csv.DictReader(io.StringIO(table))
        ]
    return rows


def test_a_file_has_the_numbers_of_its_episodes_and_a_new_number_begins_another(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    assert read(tmp_path) == [
        {"r": "1.500000", "l": "3"},
        {"r": "-2.250000", "l": "4", "height, m": "7.5"},
        {"r": "3.000000", "l": "5", "height, m": ""},
        {"r": "4.000000", "l": "6", "height, m": "", "is_success": "1.0"},
        {"r": "5.000000", "l": "7", "height, m": "8.5", "is_success": "0.0"},
    ]


def test_a_second_start_keeps_the_files_of_the_first_and_several_policies_are_named(tmp_path: Path) -> None:
    write(tmp_path, EPISODES[:1])
    write(tmp_path, [EpisodeRecord(2.0, 9, {}, 1)], num_policies=2)
    assert read(tmp_path) == [{"r": "1.500000", "l": "3"}, {"r": "2.000000", "l": "9", "policy": "1"}]


def test_a_resumed_run_forgets_the_episodes_after_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    write(tmp_path, EPISODES[:1], first_step=6)
    (older,) = [tmp_path / "episodes" / "9.monitor.csv"]
    older.write_text('#{"env_id": "CartPole-v1"}\nr,l,t\n1.0,2,3.0\n')  # of a version that did not write steps
    before = older.read_text()
    RunFolder(tmp_path).forget_after(6)
    assert len(read(tmp_path)) == 7
    with (tmp_path / "episodes" / "2.monitor.csv").open("a") as file:
        file.write("4.000000,6,0.1")  # killed while it wrote
    RunFolder(tmp_path).forget_after(3)
    assert older.read_text() == before
    older.unlink()
    assert [row["l"] for row in read(tmp_path)] == ["3", "4", "5"]
    write(tmp_path, EPISODES[3:], first_step=4)
    assert [row["l"] for row in read(tmp_path)] == ["3", "4", "5", "6", "7"]
    RunFolder(tmp_path).forget_after(-1)
    assert list((tmp_path / "episodes").iterdir()) == []


def test_the_reader_of_stable_baselines_takes_the_files(tmp_path: Path) -> None:
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    write(tmp_path, EPISODES)
    write(tmp_path, EPISODES)
    frame = monitor.load_results(str(tmp_path / "episodes"))
    assert frame["r"].tolist() == 2 * [episode.episode_return for episode in EPISODES]  # sorted by time
    assert frame["l"].tolist() == 2 * [episode.length for episode in EPISODES]
    assert frame["is_success"].dropna().tolist() == [1.0, 0.0, 1.0, 0.0]
    assert frame["t"].is_monotonic_increasing


def test_every_episode_of_a_run_is_in_its_file_if_the_setting_says_so(tmp_path: Path) -> None:
    lengths: list[str] = []

    class Listens(Observer):
        def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
            lengths.append(str(episode.length))

    small = {"num_workers": 1, "num_envs_per_worker": 2, "rollout": 32, "batch_size": 64, "report_every_s": 0.1}
    for episodes_csv in (True, False):
        config = TrainConfig(
            env="CartPole-v1", train_dir=str(tmp_path), experiment=f"csv_{episodes_csv}", serial_mode=True,
            async_rl=False, episodes_csv=episodes_csv, train_for_env_steps=256, **small,
        )  # fmt: skip
        lengths.clear()
        folder = Trainer(config, [Listens()], preset="none").run().folder
        assert lengths and (folder / "episodes").exists() == episodes_csv
        assert not episodes_csv or [row["l"] for row in read(folder)] == lengths


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    class Listens(Observer):
        def on_message(self, run: Run, text: str) -> None:
            said.append(text)

    said: list[str] = []
    (tmp_path / "episodes").write_text("in the way")
    write(tmp_path, EPISODES[:2], others=[Listens()])
    assert len(said) == 1 and "is no longer written, training continues" in said[0]
