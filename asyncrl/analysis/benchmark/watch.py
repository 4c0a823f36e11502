"""Runs a command and measures the CPU time and the memory of all its processes."""

from __future__ import annotations

import contextlib
import math
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from asyncrl.processes.lifeline import kill_group

_LOOK_EVERY_S = 1.0
_POLL_S = 0.05
_GRACE_S = 15.0
# Reading the proportional set size walks the page tables of a process, so it is done rarely, mostly in the warm-up.
_FIRST_MEMORY_LOOK_S = 1.0
_MEMORY_LOOK_FACTOR = 1.6


@dataclass
class Usage:
    """CPU time and memory of a command and its descendants, those that have ended included.

    Attributes:
        cpu: pairs of seconds since the start and CPU seconds used until then.
        peak_pss_bytes: largest sum of proportional set sizes, in which shared pages count once; None if unknown.
        peak_rss_bytes: largest sum of resident set sizes, in which shared pages count once for each process.
    """

    cpu: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    peak_pss_bytes: int | None = None
    peak_rss_bytes: int = 0
    _cpu_by_process: dict[tuple[int, float], float] = field(default_factory=dict)
    _memory_look_at: float = _FIRST_MEMORY_LOOK_S

    def cpu_between(self, begin_s: float, end_s: float) -> float:
        """Returns the CPU seconds used between two times, in seconds since the start."""
        times, used = zip(*self.cpu, strict=True)
        begin, end = np.interp([begin_s, end_s], times, used)
        return float(end - begin)

    def look(self, root: psutil.Process, elapsed_s: float) -> None:
        """Adds the usage of a process and its descendants at this time since the start."""
        try:
            processes = [root, *root.children(recursive=True)]
        except psutil.Error:
            return
        rss, pss = 0, []
        for process in processes:
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                self._cpu_by_process[process.pid, process.create_time()] = times.user + times.system
                rss += process.memory_info().rss
            if elapsed_s >= self._memory_look_at:
                with contextlib.suppress(psutil.Error, AttributeError):
                    pss.append(process.memory_full_info().pss)
        self.cpu.append((elapsed_s, sum(self._cpu_by_process.values())))
        self.peak_rss_bytes = max(self.peak_rss_bytes, rss)
        if elapsed_s >= self._memory_look_at:
            self._memory_look_at = elapsed_s * _MEMORY_LOOK_FACTOR
        if pss:
            self.peak_pss_bytes = max(self.peak_pss_bytes or 0, sum(pss))


class TaskFailed(Exception):
    """A measurement failed; the message says why, and what to change."""


def run_watched(command: Sequence[str], log: Path, timeout_s: float = math.inf, what: str = "the command") -> Usage:
    """Runs a command to its end and writes its output to a file; `what` is its name in messages.

    If an exception such as KeyboardInterrupt ends the wait, all processes of the command are ended first.

    Raises:
        TaskFailed: the command took longer than `timeout_s`, or its exit code is not 0.
    """
    with log.open("wb") as output:
        # In a separate session, so that Ctrl-C reaches it once and only through `_end`.
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    root, usage, started = psutil.Process(process.pid), Usage(), time.monotonic()
    look_at = elapsed_s = 0.0
    try:
        while process.poll() is None:
            if elapsed_s > timeout_s:
                raise TaskFailed(f"did not end within {timeout_s:g} s (output: {log})")
            if elapsed_s >= look_at:
                usage.look(root, elapsed_s)
                look_at = elapsed_s + _LOOK_EVERY_S
            time.sleep(_POLL_S)
            elapsed_s = time.monotonic() - started
    except BaseException:
        _end(process)
        raise
    if process.returncode != 0:
        raise TaskFailed(ending(what, process.returncode, log))
    return usage


def ending(what: str, exit_code: int, log: Path) -> str:
    """Returns a sentence on the end of a command, with the last error in its output."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return f"{what} ended with exit code {exit_code}{''.join(f': {last}' for last in errors[-1:])} (output: {log})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the command to stop, and kills its remaining processes after a while."""
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)  # those of torchrun have separate sessions
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(_GRACE_S)
    kill_group(process.pid)
    for left in started:
        with contextlib.suppress(psutil.Error):
            left.kill()
    process.wait()
