"""What a process does when the program that reads its output is slow, has stopped reading, or has ended.

A pipe that nobody reads, or a terminal that was stopped with Ctrl-S, blocks whoever writes to it. A run must not wait
for it: while it lasts, a thread writes its output (`PatientStream`).
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TextIO, cast

_PATIENCE_S, _PATIENCE_AT_END_S, _LONGEST_END_S = 0.5, 2.0, 10.0
_MOST_BYTES, _BYTES_AT_ONCE = 2**20, 4096


class PatientStream:
    """A text stream of a file descriptor whose writer waits for a slow reader a moment, and not for one that is gone.

    A thread writes. A line is written when `write` returns, unless that takes longer than half a second: then the
    writer continues, and does not wait again before the reader has caught up. What exceeds 1 MiB is dropped, line by
    line, and all of it once the reader has closed its end. All else is as in the stream.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self.stream = stream
        self._pid = os.getpid()
        self._text = ""
        self._state = threading.Condition()
        self._waiting: collections.deque[bytes | None] = collections.deque()
        self._num_sent = self._num_written = 0  # bytes
        self._is_late = False
        threading.Thread(target=self._write_all, name="writes output", daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Writes text up to its last line break; the rest follows with the next one, or with `flush`."""
        if os.getpid() != self._pid:  # a fork has no thread
            return self.stream.write(text)
        with self._state:
            self._text += text
            if "\n" in text:
                self._send()
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Writes what has no line break yet, too."""
        if os.getpid() != self._pid:
            self.stream.flush()
            return
        with self._state:
            self._send()

    def finish(self) -> None:
        """Writes the waiting lines and ends the thread; gives up if nothing is read for two seconds, or after ten."""
        self.flush()
        deadline = time.monotonic() + _LONGEST_END_S
        with self._state:
            while (before := self._num_written) < self._num_sent and time.monotonic() < deadline:
                if not self._state.wait_for(lambda: self._num_written > before, _PATIENCE_AT_END_S):
                    break
            self._waiting.append(None)
            self._state.notify_all()

    def _send(self) -> None:
        text, self._text = self._text, ""
        data = text.encode(self.stream.encoding, self.stream.errors or "strict")
        if not data or self._num_sent + len(data) - self._num_written > _MOST_BYTES:
            return
        self._num_sent += len(data)
        self._waiting.append(data)
        self._state.notify_all()
        if not self._is_late:
            target = self._num_sent
            self._is_late = not self._state.wait_for(lambda: self._num_written >= target, _PATIENCE_S)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()  # what was printed before
        while True:
            with self._state:
                self._state.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            if data is None:
                return
            while data:
                num_written = self._write(data[:_BYTES_AT_ONCE])
                data = data[num_written:]
                with self._state:
                    self._num_written += num_written
                    self._is_late = self._is_late and self._num_written < self._num_sent
                    self._state.notify_all()

    def _write(self, data: bytes) -> int:
        """Returns how many bytes were written, or dropped because there is no reader."""
        try:
            return os.write(self.stream.fileno(), data)
        except BlockingIOError:  # another program has made the pipe non-blocking
            select.select([], [self.stream.fileno()], [], _PATIENCE_S)
            return 0
        except (OSError, ValueError):
            return len(data)


def patient(stream: TextIO) -> TextIO:
    """Returns a stream that never waits long for its reader; the same one unless it writes to a file descriptor."""
    try:
        has_descriptor = isinstance(stream, io.TextIOWrapper) and stream.fileno() >= 0
    except (OSError, ValueError):  # it was replaced by memory, or is closed
        has_descriptor = False
    return cast(TextIO, PatientStream(cast(io.TextIOWrapper, stream))) if has_descriptor else stream


_replaced: list[tuple[str, TextIO, TextIO]] = []  # names in `sys`, and the streams before and after


def start_dropping_unread_output() -> None:
    """From here on, what this process prints never waits long for a reader."""
    if not _replaced:
        for name in ("stdout", "stderr"):
            before = getattr(sys, name)
            _replaced.append((name, before, patient(before)))
            setattr(sys, name, _replaced[-1][2])


def stop_dropping_unread_output() -> None:
    """Ends `start_dropping_unread_output`, after waiting a few seconds for a reader that is late."""
    for name, before, after in _replaced:
        if isinstance(after, PatientStream):
            after.finish()
        setattr(sys, name, before)
    _replaced.clear()


def write_from_handler(text: str) -> None:
    """Writes on standard error from a signal handler.

    The handler may have interrupted a print, so this does not use Python's buffers, and it does not wait for a reader.
    """
    is_writing = _thread.allocate_lock()
    is_writing.acquire()

    def write() -> None:
        with contextlib.suppress(OSError):  # the terminal or the reader may be gone
            os.write(2, text.encode())
        is_writing.release()

    _thread.start_new_thread(write, ())
    is_writing.acquire(timeout=_PATIENCE_S)


def run_for_a_reader(main: Callable[[], int], end: Callable[[int], NoReturn] = sys.exit) -> NoReturn:
    """Runs a command and exits with its code, or with 1 and no traceback if the reader of its output has ended."""
    escape_unknown_characters()
    try:
        try:
            code = main()
        finally:  # also for SystemExit, which --help raises
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        code = 1
    end(code)


def escape_unknown_characters() -> None:
    """Writes escape sequences for characters that the locale's encoding (`LC_ALL=C`) does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Redirects standard output to the null device, because Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
