"""Ctrl-C and SIGTERM: the first asks the run to finish and save, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_ANSWER = (
    "stopping after the current update, then saving.\n"
    "Ctrl-C again stops now and loses what was trained since the last checkpoint."
)


class StopAtOnce(KeyboardInterrupt):
    """The user asked a second time; the text says so.

    Attributes:
        exit_code: what a command returns then.
    """

    def __init__(self, text: str = "", exit_code: int = 130) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class StopSignals:
    """Counts the requests to stop while it is entered, and answers the first on the terminal.

    Only the main thread can handle signals: elsewhere this does nothing.
    """

    def __init__(self, is_silent: bool = False) -> None:
        """Handles nothing yet; says nothing if `is_silent`."""
        self._is_silent = is_silent
        self._received: list[int] = []
        self._previous: dict[int, Any] = {}

    @property
    def was_asked(self) -> bool:
        """Whether the run was asked to stop."""
        return bool(self._received)

    @property
    def exit_code(self) -> int:
        """128 plus the first signal: 130 for Ctrl-C, 143 for SIGTERM; 0 if there was none."""
        return 128 + self._received[0] if self._received else 0

    def check(self) -> bool:
        """Returns whether the run is to finish.

        Raises:
            StopAtOnce: it was asked twice.
        """
        if len(self._received) > 1:
            name = _name(self._received[-1])
            text = f"Second {name}: stopped at once; what was trained since the last checkpoint is lost."
            raise StopAtOnce(text, self.exit_code)
        return self.was_asked

    def __enter__(self) -> StopSignals:
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if len(self._received) == 1 and not self._is_silent:
            # The handler may have interrupted a print, so it writes past Python's buffers. The terminal has shown ^C.
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.write(2, f"\n{_name(number)}: {_ANSWER}\n".encode())


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
