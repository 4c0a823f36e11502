"""Trackers: what they hold of a run equals its records, and one that fails costs a warning and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from quick_start import QuickProcess
from small_training import SMALL

import asyncrl
from asyncrl import RunResult, TrainConfig, Trainer
from asyncrl.config.errors import ConfigError
from asyncrl.contrib.trackers.mlflow import MlflowRun
from asyncrl.observers import trackers
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.trackers import RESUMED_AT, TrackedRunInfo, Tracker
from asyncrl.storage.checkpoint import latest, saved_env_steps

ROOT = Path(asyncrl.__file__).parents[1]
SAVING = {**SMALL, "experiment": "tracked", "save_every_env_steps": 1000}
VIDEOS = {"env": "drawn_envs:counter", "video_every_env_steps": 1000}
OFFLINE = {
    "wandb": {"WANDB_MODE": "offline"},
    "mlflow": {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"},
    "trackio": {"TRACKIO_DIR": "trackio"},
    "comet": {"COMET_START_ONLINE": "0"},
}
# Processes and threads of these libraries outlive a run, so each runs in its own process. A tracker's records are
# read back in the same process, where its environment variables are set.


class FakeRun:
    """A tracker that notes what it is told, and fails or waits in one of its calls."""

    def __init__(self, fails_in: str = "", waits_in: str = "") -> None:
        self.fails_in, self.waits_in = fails_in, waits_in
        self.release = threading.Event()
        self.id = "the-id"
        self.ids: list[str | None] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.saved: list[tuple[str, list[str]]] = []
        self.videos: list[tuple[int, str, str]] = []
        self.ends: list[bool] = []

    def connect(self, info: TrackedRunInfo, saved_id: str | None) -> FakeRun:
        self.ids.append(saved_id)
        self._act("connect")
        return self

    def log(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        self._act("log")
        self.logged.append((env_steps, dict(scalars)))

    def save(self, name: str, files: Sequence[Path]) -> None:
        self._act("save")
        self.saved.append((name, [file.name for file in files]))

    def save_video(self, env_steps: int, name: str, file: Path) -> None:
        assert file.stat().st_size > 0
        self.videos.append((env_steps, name, file.name))

    def close(self, has_failed: bool) -> None:
        self._act("close")
        self.ends.append(has_failed)

    def _act(self, call: str) -> None:
        if call == self.waits_in:
            self.release.wait(60.0)
        if call == self.fails_in:
            raise ConnectionError("no server")


class Listens(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def on_message(self, run: Run, text: str) -> None:
        if not text.startswith("preset "):
            self.said.append(text)


def train(folder: Path, *callbacks: Observer, **settings: Any) -> RunResult:
    config = TrainConfig(**{**SAVING, "train_dir": str(folder), "train_for_env_steps": 2000, **settings})
    return Trainer(config, callbacks, preset="none").run()


def records_in(metrics: Path) -> list[tuple[int, dict[str, float]]]:
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [(line.pop("env_steps"), {key: value for key, value in line.items() if value is not None}) for line in lines]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("name", trackers.trackers())
def test_a_tracker_without_a_server_holds_the_records_of_a_resumed_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip(trackers.trackers()[name][1])
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")))
    environment = {**os.environ, **OFFLINE[name], "PYTHONPATH": path, "HOME": str(tmp_path)}
    often = {f"{what}_every_env_steps": 500 for what in ("save", "eval", "video")}
    settings = json.dumps({**SAVING, **VIDEOS, **often})
    training = QuickProcess("contrib.trackers.train_twice", [name, settings], tmp_path, environment)
    stdout, stderr = training.communicate()
    assert training.returncode == 0, stderr
    assert "is off," not in stderr
    folder = tmp_path / "train_dir" / "tracked"
    expected = records_in(folder / "metrics.jsonl")
    assert any("eval/mean_reward" in scalars for _, scalars in expected)
    (found,) = json.loads(stdout.splitlines()[-1])  # one run, although it was started twice
    assert found["id"] == (folder / "trackers" / f"{name}_id").read_text().strip()
    assert float(found["settings"]["learning_rate"]) == 3e-4
    assert "model.safetensors" in found["files"]
    # Those after the last checkpoint were made again; MLflow's have the same names.
    assert found["videos"] - (name != "mlflow") == len(list((folder / "videos").iterdir())) > 3
    if found["records"] is not None:
        kept = without_repeated_steps(found["records"])
        assert kept == expected and len(kept) < len(found["records"]) - 1
    else:  # only the history of each figure
        names = {name for _, scalars in expected for name in scalars}
        ((_, checkpoint, resumed_at),) = found["histories"].pop(RESUMED_AT)
        histories = {
            name: [[steps, value] for steps, value, at in history if at > resumed_at or steps <= checkpoint]
            for name, history in found["histories"].items()
        }
        # The steps that were made again may have had a figure that no other record has (a speed, by their timing).
        assert {name: history for name, history in histories.items() if history} == {
            name: [[steps, scalars[name]] for steps, scalars in expected if name in scalars] for name in names
        }


def without_repeated_steps(logged: list[list[Any]]) -> list[tuple[int, dict[str, float]]]:
    """The records that were not made again after the run had resumed."""
    kept: list[tuple[int, dict[str, float]]] = []
    for steps, scalars in logged:
        if RESUMED_AT in scalars:
            kept = [record for record in kept if record[0] <= scalars[RESUMED_AT]]
        else:
            kept.append((steps, scalars))
    return kept


def test_a_tracker_gets_every_record_and_the_best_checkpoint_without_its_replay(tmp_path: Path) -> None:
    fake = FakeRun()
    sac = {"algo": "sac", "save_replay": True, "warmup_env_steps": 200, "updates_per_env_step": 0.1}
    sac |= {"env": "Pendulum-v1", "train_for_env_steps": 1200}
    left_out = ("rollout", "num_batches_per_epoch", "num_epochs", "async_rl")
    settings = {name: value for name, value in SAVING.items() if name not in left_out}
    config = TrainConfig(**{**settings, **sac, "train_dir": str(tmp_path)})
    Trainer(config, [Tracker("fake", fake.connect)], preset="none").run()
    folder = tmp_path / "tracked"
    assert fake.logged == records_in(folder / "metrics.jsonl") and fake.logged
    ((kind, files),) = fake.saved
    assert kind == "best"
    assert "model.safetensors" in files and "replay.safetensors" not in files
    assert any((folder / "checkpoints").glob("*/replay.safetensors"))
    assert fake.ends == [False]
    newest = latest(folder / "checkpoints")
    assert newest is not None
    resumed = saved_env_steps(newest)
    Trainer(config.model_copy(update={"train_for_env_steps": 1500}), [Tracker("fake", fake.connect)]).run()
    assert fake.ids == [None, "the-id"]
    assert [scalars for _, scalars in fake.logged if RESUMED_AT in scalars] == [{RESUMED_AT: float(resumed)}]


def test_a_run_that_ended_before_its_first_checkpoint_is_marked_when_it_begins_anew(tmp_path: Path) -> None:
    fake = FakeRun()
    train(tmp_path, Tracker("fake", fake.connect))
    shutil.rmtree(tmp_path / "tracked" / "checkpoints")
    before = len(fake.logged)
    train(tmp_path, Tracker("fake", fake.connect))
    assert fake.ids == [None, "the-id"]
    assert fake.logged[before] == (0, {RESUMED_AT: 0.0})
    assert all(RESUMED_AT not in scalars for _, scalars in fake.logged[:before])


def test_a_tracker_gets_the_videos_of_each_policy(tmp_path: Path) -> None:
    fake = FakeRun()
    several = {
        "env": "drawn_envs:game",
        "num_policies": 2,
        "policy_mapping": "independent",
        "eval_every_env_steps": None,
    }
    train(tmp_path, Tracker("fake", fake.connect), **{**VIDEOS, **several, "train_for_env_steps": 500})
    assert [(name, file) for env_steps, name, file in fake.videos if env_steps == 0] == [
        ("policy_0/video", "step_000000000000_policy_0.mp4"),
        ("policy_1/video", "step_000000000000_policy_1.mp4"),
    ]
    assert len(fake.videos) == len(list((tmp_path / "tracked" / "videos").iterdir())) == 4


@pytest.mark.parametrize("fails_in", ["connect", "log", "save", "close"])
def test_a_tracker_that_fails_is_warned_about_once_and_training_completes(fails_in: str, tmp_path: Path) -> None:
    fake, listens = FakeRun(fails_in), Listens()
    result = train(tmp_path, Tracker("fake", fake.connect), listens)
    assert result.status == "completed" and result.summary.env_steps >= 2000
    (warning,) = listens.said
    assert warning == "warning: --track=fake is off, training continues: ConnectionError: no server"
    assert fake.ends == []


class StrictClient:
    """Stands in for MLflow's client: refuses the metrics that MLflow's stores refuse, and keeps the others."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def log_batch(self, run_id: str, metrics: Sequence[Any]) -> None:
        from mlflow.utils.validation import _validate_metric_name

        for metric in metrics:
            _validate_metric_name(metric.key)
            self.logged[metric.key] = metric.value


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("success", "success"),
        ("leg 1: x-y_z.w", "leg 1: x-y_z.w"),
        ("success (%)", "success ___"),
        ("dist[m]", "dist_m_"),
        ("goal#1\n", "goal_1_"),
        ("a+b", "a_b"),
        ("a//b", "a/_/b"),
        ("../b", "_/b"),
        ("", "_"),
    ],
)
def test_mlflow_takes_a_number_of_the_environment_whatever_its_name(name: str, expected: str) -> None:
    pytest.importorskip("mlflow")
    run = MlflowRun.__new__(MlflowRun)  # without a store
    run.id, run._client = "the-id", StrictClient()
    run.log(10, {f"episode_extra_stats/{name}": 1.5, "time/fps": 2.0})
    assert run._client.logged == {f"episode_extra_stats/{expected}": 1.5, "time/fps": 2.0}


@pytest.mark.parametrize("waits_in", ["connect", "log"])
def test_a_tracker_that_does_not_answer_delays_only_the_end(waits_in: str, tmp_path: Path) -> None:
    fake, listens = FakeRun(waits_in=waits_in), Listens()
    try:
        result = train(tmp_path, Tracker("fake", fake.connect, end_s=0.1), listens)
    finally:
        fake.release.set()
    assert result.status == "completed"
    assert listens.said == ["warning: --track=fake is off, training continues: not everything was sent within 0.1 s"]
    assert len(result.records) > 1


def test_a_tracker_that_is_far_behind_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_MOST_WAITING_CALLS", 1)
    fake, listens = FakeRun(waits_in="connect"), Listens()
    try:
        train(tmp_path, Tracker("fake", fake.connect), listens, report_every_s=0.01)
    finally:
        fake.release.set()
    assert listens.said == ["warning: --track=fake is off, training continues: it is 1 records behind"]


def test_a_missing_package_is_one_sentence_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, track=["wandb", "comet"])
    assert str(raised.value).splitlines() == [
        '--track=wandb needs the package wandb, which is not installed: pip install -e ".[wandb]"',
        '--track=comet needs the package comet_ml, which is not installed: pip install -e ".[comet]"',
    ]
    assert not (tmp_path / "tracked").exists()
