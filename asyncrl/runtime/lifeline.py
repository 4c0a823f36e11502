"""Ends a process as soon as the one that started it is gone, however that ends, and whatever this process does.

The starter holds the other end of a pipe into which nobody writes. A thread waits for the pipe's end. On Linux the
kernel sends a deadly signal at the pipe's end too, for a thread cannot run while an environment's library holds the
interpreter. Asking to die with the parent (prctl) would be no help: the parent of most children is the fork server.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import sys
import threading

log = logging.getLogger(__name__)


def end_with(pipe: int, whole_group: bool = False) -> None:
    """Ends this process when the last writing end of a pipe is closed.

    Args:
        pipe: descriptor of its reading end.
        whole_group: this process leads a process group, and those that it has started since end with it.
    """
    victim = -os.getpid() if whole_group else os.getpid()
    threading.Thread(target=_await_end, args=(pipe, victim), name="watches the lifeline", daemon=True).start()
    if not sys.platform.startswith("linux"):
        return
    try:
        fcntl.fcntl(pipe, fcntl.F_SETOWN, victim)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError as error:
        log.warning("the kernel does not tell of the end of who started this process: %s", error)


def _await_end(pipe: int, victim: int) -> None:
    end = select.poll()
    end.register(pipe, select.POLLIN)  # its end is told in any case
    end.poll()
    os.kill(victim, signal.SIGKILL)
