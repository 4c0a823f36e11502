"""What a run makes of disks, folders and memory that are not what it needs, and of signals while it saves."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from command import PROBE, Command

from asyncrl import train
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

Start = Callable[..., Command]
CART_POLE = ("--env=CartPole-v1", "--preset=none", "--with_tensorboard=False", *PROBE)


def failed_saves(command: Command) -> int:
    return int(max((record.get("perf/failed_saves", 0) for record in command.records()), default=0))


def put_in_the_way(folder: Path) -> None:
    """Puts a file in the place of a folder that a run may make again at any moment."""
    while not folder.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(IsADirectoryError):
            folder.write_text("in the way")


def test_a_checkpoint_that_cannot_be_written_is_said_and_training_goes_on(start: Start) -> None:
    command = start("asyncrl.train", *CART_POLE, "--save_every_s=2")
    command.wait_until(lambda: command.checkpoint() is not None, "a checkpoint is saved")
    folder = command.folder / "checkpoints"
    aside = folder.rename(command.folder / "aside")
    put_in_the_way(folder)
    command.wait_until(lambda: failed_saves(command) >= 1, "a failure is recorded")
    folder.unlink()
    aside.rename(folder)
    steps = command.records()[-1]["env_steps"]
    command.wait_until(lambda: command.records()[-1]["env_steps"] > steps, "training continues")
    os.killpg(command.process.pid, signal.SIGINT)
    code, out, err = command.finish()
    assert code == 130, err
    assert "could not write the checkpoint" in out + err
    summary = command.summary()
    assert summary["failed_saves"] >= 1
    assert checkpoint.load(command.checkpoint()).state["env_steps"] == summary["env_steps"] > steps


def test_three_failures_in_a_row_end_the_run_and_none_is_reported_as_saved(start: Start) -> None:
    command = start("asyncrl.train", *CART_POLE, "--save_every_s=0.5")
    command.wait_until_trained()
    folder = command.folder / "checkpoints"
    put_in_the_way(folder)
    code, _, err = command.finish()
    assert code == 1
    assert "3 checkpoints in a row could not be saved" in err
    assert command.summary()["status"] == "failed"
    assert folder.read_text() == "in the way"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_while_a_checkpoint_is_written_leaves_one_that_loads(start: Start, number: signal.Signals) -> None:
    large = ("--encoder_mlp_layers=[1000,1000]", "--num_epochs=1", "--num_batches_per_epoch=1")
    command = start("asyncrl.train", *CART_POLE, *large, "--save_every_s=0.1", "--keep_checkpoints=1")
    command.wait_until(lambda: command.checkpoint() is not None, "a checkpoint is saved")
    folder = command.folder / "checkpoints"
    command.wait_until(lambda: any(folder.glob(".tmp_*")), "another one is being written")
    if number == signal.SIGTERM:
        command.process.terminate()
    else:
        os.killpg(command.process.pid, number)
    code, _, err = command.finish()
    assert code == (143 if number == signal.SIGTERM else -signal.SIGKILL), err
    newest = command.checkpoint()
    assert newest is not None
    steps = checkpoint.load(newest).state["env_steps"]
    code, _, err = start("asyncrl.train", f"--train_for_env_steps={steps + 100}").finish()
    assert code == 0, err
    assert f"({steps:,} steps)" in err
    assert not any(folder.glob(".tmp_*"))


@pytest.mark.parametrize(
    "flags",
    [["--algo=sac", "--env=Pendulum-v1", "--replay_size=1000000000000"], ["--env=CartPole-v1", "--rollout=100000000"]],
)
def test_a_run_that_does_not_fit_into_memory_is_refused_with_both_figures(
    flags: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = train.main([*flags, "--num_workers=2", "--num_envs_per_worker=8", f"--train_dir={tmp_path}/runs"])
    err = capfd.readouterr().err
    assert code == 2, err
    assert " of shared memory, but only " in err and " bytes) are free" in err
    assert "more memory" in err
    assert not (tmp_path / "runs").exists()
