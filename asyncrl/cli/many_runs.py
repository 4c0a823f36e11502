"""What the commands that start many runs do about mistakes and signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from asyncrl.config.errors import UsageError


class _Terminated(KeyboardInterrupt):
    """The process received SIGTERM, which stops runs as Ctrl-C does."""


def run_many(work: Callable[[], int], if_stopped: str) -> int:
    """Does the work of a command and returns its exit code: 2 for a user's mistake, 130 for Ctrl-C, 143 for SIGTERM.

    Args:
        work: starts runs, and stops them by itself when KeyboardInterrupt is raised.
        if_stopped: said after a stop.
    """
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        return work()
    except UsageError as error:
        print(*(f"error: {line}" for line in str(error).splitlines()), sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(if_stopped, file=sys.stderr)
        return 143 if isinstance(stop, _Terminated) else 130
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated
