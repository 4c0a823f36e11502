"""What the commands that start many runs do about mistakes and signals."""

from __future__ import annotations

import os
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
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return work()
    except UsageError as error:
        print(*(f"error: {line}" for line in str(error).splitlines()), sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(if_stopped, file=sys.stderr)
        return 143 if isinstance(stop, _Terminated) else 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    # The handler may have interrupted a print, so it does not use Python's buffers.
    os.write(2, b"\nstopping all runs, which save first; Ctrl-C again kills them\n")
    raise _Terminated if number == signal.SIGTERM else KeyboardInterrupt
