"""Ends a process group as soon as its first process or the process that started that one has ended, however it ended.

The two processes hold one end each of a pair of connected sockets, and write nothing. When an end is closed, the kernel
(Linux) kills the group: what an environment has started ends with its worker, also if the worker and the process that
started it are killed together. Where the kernel does not, a thread of the group's first process waits for the end of
the starter. Dying with the parent (prctl) would not help: the parent of most children is the fork server.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import threading

from asyncrl.config.host import IS_LINUX

log = logging.getLogger(__name__)


def end_with(own: int, starters: int) -> None:
    """Makes this process the first of a process group, which ends with it and with the process that started it.

    Args:
        own: descriptor of this process's end of a socket pair; it stays open until this process ends.
        starters: a copy of the other end, which is closed here; the starter keeps its own.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    if IS_LINUX:
        try:
            for descriptor in (own, starters):
                fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpid())
                fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError as error:
            log.warning("the kernel does not signal the end of the process that started this one: %s", error)
    os.close(starters)
    os.set_inheritable(own, False)
    threading.Thread(target=_await_end, args=(own, os.getpid()), name="watches the lifeline", daemon=True).start()


def kill_group(first: int) -> None:
    """Kills the remaining processes of the group whose first process was `first`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(first, signal.SIGKILL)


def _await_end(descriptor: int, group: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)  # POLLHUP is always reported
    poll.poll()
    kill_group(group)
    os.kill(os.getpid(), signal.SIGKILL)  # a debugger may have taken this process out of its group
