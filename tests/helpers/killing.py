"""Finds the processes of a run by their logs, and kills them."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

_STARTED = re.compile(r"started as process (\d+)")
_PATIENCE_S = 60.0


def pids(log: Path) -> list[int]:
    """The processes that have written a log, in their order; the last one may live."""
    return [int(pid) for pid in _STARTED.findall(log.read_text())] if log.exists() else []


class Killer(threading.Thread):
    """Kills random processes at random moments, each time after the one before was replaced; then opens the gate."""

    def __init__(
        self,
        logs: Path,
        roles: str,
        count: int,
        gate: Path,
        may_start: Callable[[], bool] = lambda: True,
        may_end: Callable[[], bool] = lambda: True,
        longest_pause_s: float = 0.3,
    ) -> None:
        """Takes the folder of logs and a glob of the logs of those that are to be killed.

        Nobody is killed before `may_start`, and the gate stays closed until `may_end`.
        """
        super().__init__(daemon=True)
        self._logs, self._roles, self._count, self._gate = logs, roles, count, gate
        self._may_start, self._may_end = may_start, may_end
        self._random = random.Random(count)
        self._longest_pause_s = longest_pause_s
        self.num_killed = 0

    def run(self) -> None:
        """Does it, and opens the gate also if it fails, so that the run comes to its end."""
        try:
            self._await(lambda: bool(list(self._logs.glob(self._roles))))
            self._await(self._may_start)
            for _ in range(self._count):
                self._kill_one()
            self._await(self._may_end)
        finally:
            self._gate.touch()

    def _kill_one(self) -> None:
        time.sleep(self._random.uniform(0.0, self._longest_pause_s))
        log = self._random.choice(sorted(self._logs.glob(self._roles)))
        self._await(lambda: bool(pids(log)))
        before = pids(log)
        os.kill(before[-1], signal.SIGKILL)
        self.num_killed += 1
        self._await(lambda: len(pids(log)) > len(before))

    @staticmethod
    def _await(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("what the killer waits for did not come")
            time.sleep(0.01)
