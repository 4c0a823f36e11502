"""Ends a command quietly when the program that reads its output, such as `head`, has ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def run_for_a_reader(main: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; 1, without a traceback, if the reader of its output has ended."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return 1
    return code


def drop_output() -> None:
    """Redirects standard output to the null device, because Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
