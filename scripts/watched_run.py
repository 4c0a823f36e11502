"""Starts a training run in a separate session and observes it from outside."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

STARTED = re.compile(r"started as process (\d+)")
GONE_S = 10.0
_SHARED_MEMORY = Path("/dev/shm")


class WatchedRun:
    """One run of `python -m asyncrl.train` in a separate session; `process` is its main process."""

    def __init__(self, place: Path, flags: Sequence[str], stderr: int | IO[str]) -> None:
        """Starts the run in a folder of `place`; its messages go to `stderr`."""
        self.folder = place / "runs" / "run"
        self._entries_before = _shared_memory_entries()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.train", "--train_dir=runs", "--experiment=run", *flags],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """Returns the live processes of the run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def roles(self) -> dict[int, str]:
        """Returns names of processes by their ids, ended processes included."""
        found = {self.process.pid: "runner"}
        for log in self.logs.glob("*.log"):
            found |= {int(pid): log.stem for pid in STARTED.findall(log.read_text(errors="replace"))}
        return found

    def new_shared_memory(self) -> list[str]:
        """Returns the entries of /dev/shm that were created since the start of the run."""
        return sorted(_shared_memory_entries() - self._entries_before)

    def num_left(self, limit_s: float = GONE_S) -> int:
        """Returns the number of processes that still live after `limit_s`, or 0 as soon as none does."""
        await_condition(lambda: not self.processes(), limit_s)
        return len(self.processes())

    def end(self) -> None:
        """Kills the remaining processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()


def median_and_largest(seconds: Sequence[float | None]) -> str:
    """Returns the text of a table's cell; None stands for a time that was not seen."""
    known = [each for each in seconds if each is not None]
    unknown = f", {len(seconds) - len(known)} not seen" if len(known) < len(seconds) else ""
    return f"{statistics.median(known):.2f} ({max(known):.2f}){unknown}" if known else "-"


def await_condition(condition: Callable[[], Any], limit_s: float, poll_s: float = 0.005) -> bool:
    """Waits until a condition is true, at most `limit_s`; returns whether it is."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def _shared_memory_entries() -> set[str]:
    return set(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else set()
