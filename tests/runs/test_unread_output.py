"""A run whose output nobody reads: it trains, records, saves and ends as any other."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from command import PROBE, wait_until
from unread_pipe import PATIENCE_S, start, start_quickly

SMALL = ("--env=CartPole-v1", *PROBE, "--serial_mode=True")


def num_records(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_a_pipe_that_nobody_reads_stops_neither_records_nor_signals(tmp_path: Path, unread: int) -> None:
    flags = (*SMALL[:-1], "--train_dir=.", "--experiment=run")
    training = start_quickly("asyncrl.train", flags, tmp_path, unread, unread)
    try:
        wait_until(lambda: num_records(tmp_path / "run") >= 3, PATIENCE_S, "there are records")
        training.send_signal(signal.SIGTERM)
        assert training.wait(PATIENCE_S) == 143
    finally:
        training.kill()
        training.wait()
    assert list((tmp_path / "run" / "checkpoints").glob("*/model.safetensors"))


SCRIPT = """
from asyncrl import ProgressBar, TrainConfig, Trainer
config = TrainConfig(
    env="CartPole-v1", train_dir=".", experiment="run", serial_mode=True, train_for_env_steps=2000, rollout=32,
    num_workers=1, num_envs_per_worker=2, batch_size=64, num_batches_per_epoch=1, report_every_s=0.1,
)
result = Trainer(config, callbacks=[ProgressBar("lines")]).run()
open("status", "w").write(result.status)
"""


def test_a_trainer_with_progress_trains_to_the_end_although_nobody_reads(tmp_path: Path, unread: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = start_quickly("script", (), tmp_path, unread, unread)
    try:
        wait_until((tmp_path / "status").exists, PATIENCE_S, "the run has ended")
        assert script.wait(PATIENCE_S) == 0
    finally:
        script.kill()
        script.wait()
    assert (tmp_path / "status").read_text() == "completed"


def test_a_slow_reader_gets_every_line(tmp_path: Path) -> None:
    """The pipe holds a small part of the output, and its reader begins late."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # type: ignore[attr-defined]
    flags = (*SMALL, "--train_dir=.", "--experiment=run", "--train_for_env_steps=5000", "--report_every_s=0.01")
    with open(os.devnull, "w") as nowhere:
        training = start_quickly("asyncrl.train", flags, tmp_path, writing, nowhere.fileno())
    os.close(writing)
    wait_until(lambda: num_records(tmp_path / "run") >= 1, PATIENCE_S, "there are records")
    shown = b""
    while part := os.read(reading, 512):
        shown += part
        time.sleep(0.001)
    os.close(reading)
    assert training.wait(PATIENCE_S) == 0
    lines = shown.decode().splitlines()
    assert sum(" steps/s" in line for line in lines) >= num_records(tmp_path / "run"), shown.decode()
    assert any(line.startswith("evaluate") or "evaluate" in line for line in lines)


def test_a_mistake_ends_a_command_although_nobody_reads_the_sentence(tmp_path: Path, unread: int) -> None:
    for command in (("asyncrl.train", "--no_such_flag=1"), ("asyncrl.benchmark", "--no_such_flag=1")):
        mistaken = start(("-m", *command), tmp_path, unread, unread)
        try:
            assert mistaken.wait(PATIENCE_S) == 2
        finally:
            mistaken.kill()
            mistaken.wait()
