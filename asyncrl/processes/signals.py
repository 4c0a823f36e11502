"""Ctrl-C, SIGTERM and SIGHUP: the first lets the run finish and save, a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from asyncrl.processes.reader import write_from_handler

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to stop. The last says that the terminal or the connection to it is gone."""

_SAME_REQUEST_S = 1.0
_SAME_KEY_PRESS_S = 0.1

_ANSWER = (
    "stopping after the current update, then saving.\n"
    "Ctrl-C again stops now and loses what was trained since the last checkpoint."
)


def is_same_request(number: int, previous: int, passed_s: float) -> bool:
    """Returns whether a signal repeats the request of the previous one.

    One request may come as several signals: `timeout` sends its signal to the program and to its process group, systemd
    sends SIGHUP directly after SIGTERM, and `asyncrl launch` sends SIGINT to runs that may have received SIGTERM
    themselves. Nobody presses Ctrl-C twice in a tenth of a second, and no user asks again by SIGHUP.

    Args:
        number: the signal.
        previous: the signal of the last request.
        passed_s: time between the two.
    """
    if number == signal.SIGHUP:
        return True
    return passed_s < (_SAME_KEY_PRESS_S if number == previous == signal.SIGINT else _SAME_REQUEST_S)


class StopAtOnce(KeyboardInterrupt):
    """The user has asked a second time; the text is for the user, `exit_code` for the command."""

    def __init__(self, text: str = "", exit_code: int = 130) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class StopSignals:
    """A context that counts the requests to stop, and answers the first on the terminal unless `is_silent`.

    Only the main thread can handle signals: in other threads it does nothing.

    Attributes:
        was_asked: whether there was a request.
        was_answered: whether it was answered on the terminal.
        is_silent: whether somebody else answers.
    """

    def __init__(self, is_silent: bool = False) -> None:
        self.was_asked = self.was_answered = False
        self.is_silent = is_silent
        self._received: list[int] = []
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 plus the number of the first signal: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP; 0 without one."""
        return 128 + self._received[0] if self._received else 0

    @property
    def answer(self) -> str:
        """What the user is told after the first request."""
        return f"{_name(self._received[0])}: {_ANSWER}"

    def check(self) -> bool:
        """Returns whether the run is to finish.

        Raises:
            StopAtOnce: there were two requests.
        """
        if len(self._received) > 1:
            name = _name(self._received[-1])
            text = f"Second {name}: stopped at once; what was trained since the last checkpoint is lost."
            raise StopAtOnce(text, self.exit_code)
        return self.was_asked

    def __enter__(self) -> StopSignals:
        is_main = threading.current_thread() is threading.main_thread()
        for number in STOPPING if is_main else ():
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:  # nohup
                continue
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # None stands for one that was not set from Python
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received and is_same_request(number, self._received[-1], now - self._received_at):
            return
        self._received.append(number)
        self._received_at, self.was_asked = now, True
        if len(self._received) == 1 and not self.is_silent:
            self.was_answered = True
            write_from_handler(f"\n{self.answer}\n")  # the terminal shows ^C


@contextlib.contextmanager
def suspended_together(groups: Callable[[], Iterable[int]]) -> Iterator[None]:
    """A context in which Ctrl-Z stops the process groups of children with this process, and `fg` continues them.

    The terminal sends Ctrl-Z to the group of this process only. In other threads than the main one it does nothing.
    """

    def send(number: int) -> None:
        for group in groups():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def suspend(number: int, frame: FrameType | None) -> None:
        send(signal.SIGSTOP)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns when this process is continued
        signal.signal(number, suspend)
        send(signal.SIGCONT)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTSTP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
