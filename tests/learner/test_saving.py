"""Checkpoints that cannot be saved, for real: a limit on the size of files, and a file in the folder's place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from full_disk import files_of_at_most

from asyncrl.config.schema import TrainConfig
from asyncrl.learner import worker as worker_module
from asyncrl.learner.worker import CheckpointSaver
from asyncrl.processes.children import RunFailed
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint


def content(value: float = 1.0, size: int = 50_000) -> Checkpoint:
    return Checkpoint({"weight": torch.full((size,), value)}, {"exp_avg": torch.zeros(3)}, {"env_steps": 1})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_cut_off_leaves_the_older_checkpoint_and_is_never_reported_as_saved(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, TrainConfig(keep_checkpoints=1), 0)
    older = saver.save(10, content)
    assert older.error is None
    with files_of_at_most(100_000):
        failed = saver.save(20, content)
    assert failed.error is not None and "checkpoint_000000000020: File too large" in failed.error
    assert names(tmp_path) == ["checkpoint_000000000010"]
    assert checkpoint.load(Path(older.path)).state == {"env_steps": 1}
    assert saver.save(30, content).error is None
    assert names(tmp_path) == ["checkpoint_000000000030"]


def test_three_failures_in_a_row_end_the_run_and_fewer_do_not(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, TrainConfig(), 0)
    with files_of_at_most(100_000):
        assert saver.save(10, content).error is not None
        assert saver.save_best(10, content, 1.0).error is not None
    assert saver.save_milestone(20, content).error is None
    with files_of_at_most(100_000):
        for _ in range(2):
            assert saver.save(30, content).error is not None
        with pytest.raises(RunFailed, match=r"3 checkpoints in a row could not be saved, the last: .*File too large"):
            saver.save(40, content)
    assert names(tmp_path / "milestones") == ["checkpoint_000000000020"]


def test_milestones_are_due_at_multiples_of_their_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now))
    saver = CheckpointSaver(tmp_path, TrainConfig(save_milestones_s=10.0), 0)
    due = []
    for now in (1009.9, 1013.0, 1019.9, 1020.0, 1041.0, 1049.0, 1050.0):
        due.append(saver.is_milestone_due)
        if due[-1]:
            saver.save_milestone(int(now), content)
    assert due == [False, True, False, True, True, False, True]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, bad: float) -> None:
    report = CheckpointSaver(tmp_path / "checkpoints", TrainConfig(), 0).save(10, lambda: content(bad))
    assert report.error is not None and "weight is not finite" in report.error
    assert checkpoint.newest_first(tmp_path / "checkpoints") == []
