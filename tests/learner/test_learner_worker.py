"""The order of the learner's doings, and when it stops; with fakes for all that it does them with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import BOX, planned, small_arena

from asyncrl.algorithms.losses import Progress
from asyncrl.buffers.control import RunControl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner import trajectory_loop as trainer_module
from asyncrl.learner import worker as worker_module
from asyncrl.learner.slot_ledger import Columns
from asyncrl.learner.state import LearnerState
from asyncrl.learner.trajectory_loop import TrainedBefore, TrajectoryLoop
from asyncrl.learner.worker import LearnerContext, LearnerOutcome, LearnerWorker, StopCondition
from asyncrl.observers.reports import CheckpointReport, LagMetrics, TrainMetrics
from asyncrl.storage import checkpoint

LAG = LagMetrics(0.0, 0.0, 0, 0.0)
METRICS = TrainMetrics(*[0.0] * 13)
DATASET = [Columns(3, 0, 2, is_last=True)]


class Fakes:
    """A learner worker over fakes that write down what is done to them, in one list."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.log: list[Any] = []
        resumed, look = settings.pop("resumed", None), settings.pop("look", None)
        best_return = settings.pop("best_return", None)
        self.config = TrainConfig(**{"num_epochs": 2, **settings})
        self.version = 0
        self.datasets: list[list[Columns] | None] = []
        arena, _ = small_arena(planned(batch_size=8, num_workers=1, num_envs_per_worker=2))
        self.control = RunControl(arena, 1)
        publisher = self.Publisher(self)
        counters = resumed or {"env_steps": 0, "num_samples": 0, "elapsed_s": 0.0}
        limits = self.config.train_for_seconds, counters["elapsed_s"], self.config.train_for_env_steps
        context = LearnerContext(self.config, self.control, StopCondition(self.control, *limits))
        trained = TrainedBefore(counters["env_steps"], counters["num_samples"])
        self.trainer = TrajectoryLoop(self, self, self, publisher, context, trained, look=look)
        if best_return is not None:
            self.control.ask_for_best(best_return)
        self.worker = LearnerWorker(self.trainer, context, BOX, tmp_path)

    class Publisher:
        def __init__(self, fakes: Fakes) -> None:
            self.fakes = fakes

        def publish(self, block: Any, version: int, env_steps: int) -> None:
            self.fakes.log.append(("publish", version, float(block[0]), env_steps))

    def begin_dataset(self) -> None:
        self.log.append("begin")

    # the learner
    block_size, skipped_steps, versions_left_out, notice, device = 4, 0, 0, None, torch.device("cpu")

    @property
    def policy_version(self) -> int:
        return self.version

    def publication(self, out: torch.Tensor) -> torch.Tensor:
        return out.fill_(float(self.version))

    def updates(self, dataset: Any, env_steps_before: int) -> Iterator[Progress]:
        self.log.append(("train", env_steps_before))
        num_passes = self.config.num_epochs
        for number in range(1, num_passes + 1):
            self.version += 4
            yield Progress(4 * number, 4 * num_passes, ends_pass=True, is_last=number == num_passes)

    def take_metrics(self) -> TrainMetrics:
        return METRICS

    def state_dict(self) -> LearnerState:
        return LearnerState({"weight": torch.zeros(1)}, {"step": torch.zeros(1)}, {"policy_version": self.version})

    # the batcher
    def collect(self, columns: list[Columns]) -> Any:
        self.log.append(("collect", columns))
        return SimpleNamespace(num_valid=100, num_env_steps=100)

    def lag(self, learner_version: int) -> LagMetrics:
        self.log.append(("lag", learner_version))
        return LAG

    # the exchange
    ready, dropped_samples = range(5), 7

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        self.log.append(("take", learner_version))
        return self.datasets.pop(0)

    def release(self, columns: list[Columns]) -> None:
        self.log.append(("release", columns))


def test_weights_are_published_before_the_slots_they_were_learned_from_are_freed(tmp_path: Path) -> None:
    fakes = Fakes(tmp_path)
    assert fakes.log == [("publish", 0, 0.0, 0)]  # before any slot can be granted
    fakes.datasets = [None, DATASET, DATASET]
    assert fakes.trainer.train_once(0.0) is None
    report = fakes.trainer.train_once(0.0)
    assert fakes.log[1:] == [
        ("take", 0),
        ("take", 0),
        ("collect", DATASET),
        ("lag", 0),
        ("train", 0),
        ("publish", 4, 4.0, 100),
        ("publish", 8, 8.0, 100),
        ("release", DATASET),
    ]
    assert report is not None
    assert (report.env_steps, report.num_samples, report.num_updates) == (100, 200, 8)
    assert (report.slots_ready, report.dropped_samples, report.lag) == (5, 7, LAG)
    assert fakes.trainer.train_once(0.0).env_steps == 200
    assert ("train", 100) in fakes.log


def test_with_a_fixed_lag_weights_go_out_between_two_whole_datasets_only(tmp_path: Path) -> None:
    fakes = Fakes(tmp_path, fixed_lag=True)
    fakes.datasets = [DATASET, DATASET]
    fakes.trainer.train_once(0.0)
    fakes.trainer.train_once(0.0)
    steps = [entry if isinstance(entry, str) else entry[:2] for entry in fakes.log[1:] if entry[0] != "lag"]
    assert steps == [
        *(("take", 0), ("collect", DATASET), ("publish", 0), "begin", ("train", 0), ("release", DATASET)),
        *(("take", 8), ("collect", DATASET), ("publish", 8), "begin", ("train", 100), ("release", DATASET)),
    ]
    fakes.trainer.flush()  # the final evaluation is of what was published last
    assert fakes.log[-1][:2] == ("publish", 16)


def test_training_is_over_when_asked_or_when_its_time_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Fakes(tmp_path)
    assert not asked.worker.is_over
    asked.control.request_stop()
    assert asked.worker.is_over

    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker_module, "time", clock)
    timed = Fakes(tmp_path, train_for_seconds=60.0)
    clock.now += 59.0
    assert not timed.worker.is_over
    clock.now += 1.0
    assert timed.worker.is_over


@pytest.mark.parametrize("reason", ["asked", "out of time"])
def test_an_update_ends_after_the_pass_in_hand_when_the_run_is_to_stop(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker_module, "time", clock)
    fakes = Fakes(tmp_path, num_epochs=10, train_for_seconds=60.0)
    fakes.datasets = [DATASET]
    updates = fakes.updates

    def stopped_in_the_third_pass(dataset: Any, env_steps: int) -> Iterator[Progress]:
        for progress in updates(dataset, env_steps):
            if progress.num_done == 12 and reason == "asked":
                fakes.control.request_stop()
            elif progress.num_done == 12:
                clock.now += 60.0
            yield progress
            update = fakes.control.activity.update
            assert update is not None and (update.num_done, update.num_total) == (progress.num_done, 40)

    fakes.updates = stopped_in_the_third_pass
    report = fakes.trainer.train_once(0.0)
    assert (report.env_steps, report.num_samples, report.num_updates) == (100, 300, 12)
    assert [entry[:2] for entry in fakes.log[-3:]] == [("publish", 8), ("publish", 12), ("release", DATASET)]
    assert fakes.control.activity.update is None
    assert fakes.worker.is_over


def test_passes_that_the_learner_leaves_out_by_itself_are_not_missing(tmp_path: Path) -> None:
    fakes = Fakes(tmp_path, num_epochs=10, train_for_env_steps=100)
    fakes.datasets = [DATASET]

    def ends_after_one_pass(dataset: Any, env_steps: int) -> Iterator[Progress]:
        fakes.control.request_stop()
        yield Progress(4, 40, ends_pass=True, is_last=True)

    fakes.updates = ends_after_one_pass
    assert fakes.trainer.train_once(0.0).num_samples == 100
    assert not fakes.trainer.has_more_to_learn


def test_an_update_in_one_process_looks_after_other_things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "_LOOK_EVERY_S", 0.0)
    looks: list[int] = []
    fakes = Fakes(tmp_path, num_epochs=3, look=lambda: looks.append(fakes.version))
    fakes.datasets = [DATASET]
    fakes.trainer.train_once(0.0)
    assert looks == [4, 8, 12]


def test_it_saves_when_it_is_time_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker_module, "time", clock)
    fakes, sent = Fakes(tmp_path, save_every_s=10.0), []
    fakes.datasets = [DATASET, None]
    fakes.worker.advance(0.0, sent.append)
    assert [type(report).__name__ for report in sent] == ["LearnerReport"]
    clock.now += 10.0
    fakes.worker.advance(0.0, sent.append)
    assert (sent[1].env_steps, sent[1].error) == (100, None)
    outcome = fakes.worker.finish(sent.append)
    assert outcome == LearnerOutcome(100, sent[2].path, None)
    saved = checkpoint.load(Path(outcome.checkpoint))
    assert (saved.state["env_steps"], saved.state["num_samples"], saved.state["policy_version"]) == (100, 200, 8)


def test_it_saves_after_so_many_steps_however_they_fall(tmp_path: Path) -> None:
    fakes, sent = Fakes(tmp_path, save_every_env_steps=150, keep_checkpoints=9), []
    fakes.datasets = [DATASET] * 6
    due = [fakes.worker.advance(0.0, sent.append) for _ in range(6)]
    assert [None if report is None else report.env_steps for report in due] == [None, 200, 300, None, 500, 600]


def test_milestones_stay_and_the_best_gives_way_to_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker_module, "time", clock)
    fakes, sent = Fakes(tmp_path, save_every_s=1e9, save_milestones_s=10.0), []
    fakes.datasets = [DATASET] * 4
    for mean_return in (1.0, 2.0, 3.0, None):
        clock.now += 5.0
        if mean_return is not None:
            fakes.control.ask_for_best(mean_return)
        assert fakes.worker.advance(0.0, sent.append) is None
    saved = [(report.kind, report.env_steps) for report in sent if isinstance(report, CheckpointReport)]
    assert saved == [("best", 100), ("milestone", 200), ("best", 200), ("best", 300), ("milestone", 400)]
    assert checkpoint.newest_first(tmp_path) == []
    assert [path.name for path in checkpoint.newest_first(tmp_path / "milestones")] == [
        "checkpoint_000000000400",
        "checkpoint_000000000200",
    ]
    (best,) = checkpoint.newest_first(tmp_path / "best")
    assert checkpoint.load(best).state["env_steps"] == 300
    assert checkpoint.best_return(tmp_path) == 3.0


def test_a_best_checkpoint_that_was_asked_for_before_the_learner_was_there_is_saved(tmp_path: Path) -> None:
    fakes, sent = Fakes(tmp_path, save_every_s=1e9, best_return=4.0), []
    fakes.datasets = [DATASET]
    fakes.worker.advance(0.0, sent.append)
    assert checkpoint.best_return(tmp_path) == 4.0


def test_a_repeatable_run_that_is_stopped_keeps_the_checkpoint_of_its_last_reset(tmp_path: Path) -> None:
    fakes = Fakes(tmp_path, checkpoint_resets=True, save_every_env_steps=200, train_for_env_steps=500)
    fakes.datasets = [DATASET] * 3
    sent: list[Any] = []
    for _ in range(3):
        fakes.worker.advance(0.0, sent.append)
    fakes.control.request_stop()
    outcome = fakes.worker.finish(sent.append)
    assert (outcome.env_steps, outcome.is_complete) == (300, False)
    assert Path(outcome.checkpoint).name == "checkpoint_000000000200"
    assert [path.name for path in checkpoint.newest_first(tmp_path)] == ["checkpoint_000000000200"]


def test_a_resumed_learner_counts_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(worker_module, "time", clock)
    resumed = {"env_steps": 500, "num_samples": 700, "elapsed_s": 50.0}
    fakes = Fakes(tmp_path, train_for_env_steps=600, train_for_seconds=60.0, resumed=resumed)
    assert fakes.log == [("publish", 0, 0.0, 500)]
    assert not fakes.worker.is_over
    fakes.datasets = [DATASET]
    clock.now += 5.0
    report = fakes.trainer.train_once(0.0)
    assert (report.env_steps, report.num_samples) == (600, 900)
    assert fakes.worker.is_over
    state = checkpoint.load(Path(fakes.worker.finish(lambda report: None).checkpoint)).state
    assert (state["env_steps"], state["num_samples"], state["elapsed_s"]) == (600, 900, 55.0)
    assert EnvSpec.from_data(state["spec"]) == BOX
    assert TrainConfig(**state["config"]) == fakes.config

    late = Fakes(tmp_path, train_for_seconds=60.0, resumed=resumed)
    clock.now += 10.0
    assert late.worker.is_over


def test_a_checkpoint_that_cannot_be_written_is_reported_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Path:
        raise checkpoint.CheckpointError("disk is full")

    monkeypatch.setattr(checkpoint, "save", full)
    fakes, sent = Fakes(tmp_path), []
    assert fakes.worker.finish(sent.append) == LearnerOutcome(0, None, "disk is full")
    assert sent[0].error == "disk is full"
