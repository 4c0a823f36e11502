"""Where records go: `metrics.jsonl` and TensorBoard. A failure of either is said once and never stops a run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class RecordWriter(Protocol):
    """Takes the scalars of one record by name."""

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Writes one record at `env_steps`. Raises OSError or ImportError if it cannot."""

    def close(self) -> None:
        """Writes what is buffered."""


class JsonLinesWriter:
    """Appends one JSON object a line; what is not finite becomes null."""

    def __init__(self, path: Path) -> None:
        """Opens nothing yet: the first record does."""
        self._path = path
        self._is_checked = False

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Appends a record, its step axis first."""
        record: dict[str, float | None] = {"env_steps": env_steps}
        record.update((name, value if math.isfinite(value) else None) for name, value in scalars.items())
        with open(self._path, "ab") as file:
            if not self._is_checked:
                self._end_broken_line(file.tell())
                self._is_checked = True
            file.write((json.dumps(record, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Nothing is buffered."""

    def _end_broken_line(self, size: int) -> None:
        """Ends a line that a killed run had begun, so that it spoils no further record."""
        if size == 0:
            return
        with open(self._path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


class TensorBoardWriter:
    """Writes event files through tensorboardX, which is imported at the first record: that takes most of a second.

    It uses tensorboardX's events writer directly. The `SummaryWriter` above it hands events to a thread through a
    bounded queue; when that thread dies of a full disk, the next records wait for it for ever.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Makes nothing yet: the first record does.

        Args:
            folder: of the event files.
            resumed_at: environment steps from which a run goes on; what was recorded of later ones is to be forgotten.
        """
        self._folder = folder
        self._resumed_at = resumed_at
        self._events: Any = None

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Writes a record and flushes it to the file."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        if self._events is None:
            from tensorboardX.event_file_writer import EventsWriter

            self._folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self._folder / "events"))
            if self._resumed_at is not None:
                start = SessionLog(status=SessionLog.START)
                self._events.write_event(Event(wall_time=time.time(), step=self._resumed_at + 1, session_log=start))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._events.write_event(Event(wall_time=time.time(), step=env_steps, summary=Summary(value=values)))
        self._events.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._events is not None:
            self._events.close()
            self._events = None


class GuardedWriter:
    """Gives up a writer at its first failure and says so once."""

    def __init__(self, name: str, writer: RecordWriter, say: Callable[[str], None]) -> None:
        """Wraps `writer`; `name` is what the user knows it by, `say` shows one sentence to the user."""
        self._name = name
        self._writer: RecordWriter | None = writer
        self._say = say

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Writes a record, or does nothing if an earlier one failed."""
        self._guard(lambda writer: writer.write(env_steps, scalars))

    def close(self) -> None:
        """Closes the writer."""
        self._guard(lambda writer: writer.close())

    def _guard(self, action: Callable[[RecordWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            action(self._writer)
        # A library that writes a log has many ways to fail, and none of them is worth the run.
        except Exception as error:
            self._writer = None
            self._say(f"{self._name} is no longer written, training continues: {type(error).__name__}: {error}")
