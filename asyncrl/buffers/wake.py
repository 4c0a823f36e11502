"""Waking a process that waits: one eventfd (elsewhere a pipe) for each consumer.

A wake-up is a hint. It is sent after the data was written, and whoever waits looks again at its rings when it was
woken and when its timeout has passed. It is made before any process starts, so a restarted process needs nothing from
its peers.
"""

from __future__ import annotations

import os
import select
from multiprocessing import reduction
from typing import Any


class Waker:
    """Wakes the one process that waits on it; any number of processes may send."""

    def __init__(self, read_fd: int | None = None, write_fd: int | None = None) -> None:
        """Makes a new waker; the arguments are for the copy in a child."""
        if read_fd is None or write_fd is None:
            read_fd, write_fd = _new_descriptors()
        self._read_fd = read_fd
        self._write_fd = write_fd

    def wake(self) -> None:
        """Ends the present or the next `wait` of the consumer."""
        try:
            os.write(self._write_fd, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return  # as many wake-ups as fit are pending: the consumer wakes anyway

    def wait(self, timeout_s: float) -> bool:
        """Waits until woken or until the timeout has passed; takes all pending wake-ups.

        Returns:
            Whether it was woken.
        """
        if not select.select([self._read_fd], [], [], timeout_s)[0]:
            return False
        try:
            os.read(self._read_fd, 4096)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Closes this process's descriptors."""
        os.close(self._read_fd)
        if self._write_fd != self._read_fd:
            os.close(self._write_fd)

    def __reduce__(self) -> tuple[Any, ...]:
        read = reduction.DupFd(self._read_fd)
        write = read if self._write_fd == self._read_fd else reduction.DupFd(self._write_fd)
        return _rebuild_waker, (read, write)


def _rebuild_waker(read: Any, write: Any) -> Waker:
    read_fd = read.detach()
    return Waker(read_fd, read_fd if write is read else write.detach())


def _new_descriptors() -> tuple[int, int]:
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return fd, fd
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    return read_fd, write_fd
