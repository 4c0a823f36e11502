"""A command line in its own process, as a user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
from quick_start import MODULES as QUICK_MODULES
from quick_start import QuickProcess

from asyncrl.storage import checkpoint

HELPERS = Path(__file__).resolve().parent
ENDED_S = 10.0
PROBE = (
    "--num_workers=2",
    "--num_envs_per_worker=4",
    "--rollout=8",
    "--batch_size=32",
    "--num_batches_per_epoch=2",
    "--learner_threads=1",
    "--encoder_mlp_layers=[16]",
    "--report_every_s=0.2",
)
"""Settings of a run that continues until it is stopped."""


class Command:
    """A command in its own session, so that all of its processes can be found.

    `is_fresh`: it is started by its own interpreter, although it could be started quickly. `variables` are added to its
    environment.
    """

    def __init__(
        self,
        module: str,
        *flags: str,
        cwd: Path,
        launcher: Sequence[str] = (),
        prefix: Sequence[str] = (),
        is_fresh: bool = False,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = cwd / "runs" / "run"
        path = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
        flags = ("--train_dir=runs", "--experiment=run", *flags)
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        self.process: QuickProcess | subprocess.Popen[str]
        if module in QUICK_MODULES and not (launcher or prefix or is_fresh):
            self.process = QuickProcess(module, flags, cwd, environment)
            return
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", *launcher, module, *flags],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Waits for the end; returns exit code, stdout and stderr. No process is left then."""
        stdout, stderr = self.process.communicate()
        wait_until(lambda: not self.session(), ENDED_S, "all processes are gone")
        return self.process.returncode, stdout, stderr

    def session(self) -> list[psutil.Process]:
        """The processes of the command that live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_until_trained(self, patience_s: float = 60.0) -> None:
        """Waits until a record tells of training."""
        is_trained = "training is reported"
        self.wait_until(lambda: any("train/loss" in record for record in self.records()), is_trained, patience_s)

    def wait_until(self, condition: Callable[[], bool], what: str, patience_s: float = 60.0) -> None:
        """Waits for something that the command does while it runs."""

        def ended_or_met() -> bool:
            return self.process.poll() is not None or condition()

        wait_until(ended_or_met, patience_s, what)
        assert self.process.poll() is None, f"ended before {what}: {self.process.communicate()[1]}"

    def records(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def summary(self) -> dict[str, Any]:
        """What summary.json says."""
        return json.loads((self.folder / "summary.json").read_text())

    def checkpoint(self) -> Path | None:
        """The newest checkpoint."""
        return checkpoint.latest(self.folder / "checkpoints")

    def kill(self) -> None:
        """Ends what a failed test has left, processes in sessions of their own among it."""
        left = self.session()
        if self.process.poll() is None:
            left += psutil.Process(self.process.pid).children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.communicate()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s until {what}"
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `python -m MODULE` with flags, in a folder of this test; ends the commands even if the test fails."""
    commands: list[Command] = []

    def start(module: str, *flags: str, is_fresh: bool = False) -> Command:
        commands.append(Command(module, *flags, cwd=tmp_path, is_fresh=is_fresh))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()
