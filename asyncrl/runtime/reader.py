"""What a command does when the program that reads its output, such as `head`, has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def run_for_a_reader(main: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; 1, and no traceback, if nobody reads its output any more."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return 1
    return code


def drop_output() -> None:
    """Lets standard output lead nowhere: nobody reads it any more, and Python flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
