"""Ends a process whose environments have left threads, for which the interpreter would wait."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Exits with `code`; at once, after the functions of `atexit`, if threads that are not daemons still run."""
    if any(not thread.daemon and thread is not threading.current_thread() for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        flush_output()
        os._exit(code)
    sys.exit(code)


def flush_output() -> None:
    """Flushes standard output and standard error; an environment may have closed or replaced them."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
