"""Single keys from the terminal, without Enter, while a run trains."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from typing import Any


def foreground_group(descriptor: int) -> int | None:
    """The process group in the foreground of a terminal; None if the terminal does not control this process."""
    try:
        return os.tcgetpgrp(descriptor) or None  # 0: a group of another PID namespace
    except OSError:
        return None


class Keys:
    """Reads keys that were pressed, and never waits.

    The terminal is switched to single keys without echo while this process is in its foreground; Ctrl-C and Ctrl-Z
    still work. A process in the background reads nothing and changes nothing, which would stop it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Takes the terminal's file descriptor; None for standard input. Without a terminal there are no keys."""
        self._descriptor = -1
        self._before: list[Any] | None = None  # modes of the terminal before it was switched
        with contextlib.suppress(OSError, ValueError):  # standard input may be closed or no file
            found = sys.stdin.fileno() if descriptor is None else descriptor
            self._descriptor = found if os.isatty(found) else -1

    def pressed(self) -> str:
        """Returns the keys that were pressed since the last call."""
        if not self._is_in_foreground():
            return ""
        try:
            self._switch()
            found = b""
            while select.select([self._descriptor], [], [], 0.0)[0] and (more := os.read(self._descriptor, 64)):
                found += more
        except (OSError, termios.error):  # the terminal is gone
            self._descriptor = -1
            return ""
        return found.decode(errors="ignore")

    def close(self) -> None:
        """Gives the terminal back as it was."""
        if self._before is not None and self._is_in_foreground():
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        self._descriptor, self._before = -1, None

    def _is_in_foreground(self) -> bool:
        return foreground_group(self._descriptor) == os.getpgrp()

    def _switch(self) -> None:
        """Switches to single keys, again if a shell has switched back after Ctrl-Z."""
        modes = termios.tcgetattr(self._descriptor)
        line_wise = termios.ICANON | termios.ECHO
        if modes[3] & line_wise:
            if self._before is None:
                self._before = termios.tcgetattr(self._descriptor)
            modes[3] &= ~line_wise
            termios.tcsetattr(self._descriptor, termios.TCSANOW, modes)
