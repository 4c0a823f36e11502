"""What the commands that start many runs do about signals."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from asyncrl.commands.runner import Command, Options, exit_code_of
from asyncrl.runtime.reader import stop_dropping_unread_output, write_from_handler
from asyncrl.runtime.signals import STOPPING, is_same_request


class ManyRuns(Command[Options]):
    """A command that starts many runs.

    Its exit code is 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    Attributes:
        if_stopped: said after a stop.
    """

    if_stopped: str

    def exit_code(self, work: Callable[[], int]) -> int:
        return run_many(work, self.if_stopped)


class _Stopped(KeyboardInterrupt):
    """The process received one of the signals that stop runs."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def run_many(work: Callable[[], int], if_stopped: str) -> int:
    """Does the work of a command and returns its exit code.

    2 for a user's mistake, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, which is left alone under nohup.

    Args:
        work: starts runs, and stops them by itself when KeyboardInterrupt is raised.
        if_stopped: said after a stop.
    """
    is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in STOPPING if not (number == signal.SIGHUP and is_nohup)]
    requests: list[tuple[int, float]] = []  # signals and their times

    def stop_work(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if requests and is_same_request(number, requests[-1][0], now - requests[-1][1]):
            return
        requests.append((number, now))
        write_from_handler("\nstopping all runs, which save first; Ctrl-C again kills them\n")
        raise _Stopped(number)

    previous = {number: signal.signal(number, stop_work) for number in numbers}
    try:
        return exit_code_of(work)
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(if_stopped, file=sys.stderr, flush=True)
        return stop.exit_code if isinstance(stop, _Stopped) else 130
    finally:
        stop_dropping_unread_output()
        for number, handler in previous.items():
            signal.signal(number, handler)
