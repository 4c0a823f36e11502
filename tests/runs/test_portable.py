"""Runs with what every POSIX system has (`ASYNCRL_PORTABLE`), as on macOS: words between fences, spawn, pipes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PROBE, Command
from killing import pids

from asyncrl import native

pytestmark = [
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.skipif(not native.LIBRARY.exists(), reason="needs the native core"),
]

PORTABLE = {"ASYNCRL_PORTABLE": "1"}


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.kill()


def train(tmp_path: Path, commands: list[Command], *flags: str) -> Command:
    given = [flag for flag in PROBE if flag.partition("=")[0] not in {other.partition("=")[0] for other in flags}]
    commands.append(Command("asyncrl.train", *given, *flags, cwd=tmp_path, is_fresh=True, variables=PORTABLE))
    return commands[-1]


@pytest.mark.parametrize(
    "flags",
    [
        ("--inference_mode=central",),
        ("--async_rl=False",),
        ("--algo=sac", "--batch_size=16", "--warmup_env_steps=200", "--updates_per_env_step=0.05"),
        ("--algo=a2c", "--backend=hogwild", "--hogwild_mode=synced", "--hogwild_max_staleness=2"),
    ],
    ids=["async-central", "sync", "sac", "hogwild"],
)
def test_a_worker_that_is_killed_is_replaced_and_the_run_ends_well(
    tmp_path: Path, commands: list[Command], flags: tuple[str, ...]
) -> None:
    training = train(tmp_path, commands, "--env=CartPole-v1", *flags)
    losses = {"train/loss", "train/critic_loss"}
    training.wait_until(lambda: any(losses & record.keys() for record in training.records()), "training is reported")
    log = training.folder / "logs" / "rollout-1.log"
    os.kill(pids(log)[-1], signal.SIGKILL)
    training.wait_until(lambda: len(pids(log)) == 2, "the worker is replaced")
    os.kill(training.process.pid, signal.SIGINT)
    code, _, stderr = training.finish()
    assert code == 130, stderr
    assert training.summary()["restarts"] == 1 and training.summary()["num_updates"] > 0
    assert training.checkpoint() is not None
    used = json.loads((training.folder / "environment.json").read_text())["machine"]
    assert used["usable_cores"] == os.cpu_count()
