"""Ends a process as soon as the process that started it has ended, for whatever reason and whatever this process does.

The starter holds the writing end of a pipe and writes nothing. A thread waits for the pipe to close. On Linux the
kernel also sends a deadly signal then, because a thread cannot run while an environment's library holds the
interpreter's lock. Dying with the parent (prctl) would not help: the parent of most children is the fork server.
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
        pipe: descriptor of the reading end.
        whole_group: this process leads a process group, which ends with it.
    """
    victim = -os.getpid() if whole_group else os.getpid()
    threading.Thread(target=_await_end, args=(pipe, victim), name="watches the lifeline", daemon=True).start()
    if not sys.platform.startswith("linux"):
        return
    try:
        fcntl.fcntl(pipe, fcntl.F_SETOWN, victim)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError as error:
        log.warning("the kernel does not signal the end of the process that started this one: %s", error)


def _await_end(pipe: int, victim: int) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)  # POLLHUP is always reported
    poll.poll()
    os.kill(victim, signal.SIGKILL)
