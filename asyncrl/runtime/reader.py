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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python flushes once more at its end
        return 1
    return code
