"""Where records and messages go: `metrics.jsonl`, TensorBoard, the log. No run stops because a file fails."""

from __future__ import annotations

import abc
import json
import math
import os
import time
from typing import Any

from asyncrl.monitoring.status import Record
from asyncrl.monitoring.summary import Summary
from asyncrl.observers.observer import Observer, Run, log


class RecordWriter(Observer, abc.ABC):
    """Writes records until that fails once: then it says so, and writes no more."""

    is_off = False

    @abc.abstractmethod
    def write(self, record: Record) -> None:
        """Writes one record. Raises an exception if it cannot."""

    def close(self) -> None:
        """Writes what is buffered."""

    @property
    def name(self) -> str:
        """What the user knows it by."""
        return type(self).__name__

    def on_record(self, run: Run, record: Record) -> None:
        """Writes it."""
        if self.is_off:
            return
        try:
            self.write(record)
        except Exception as error:  # a library that writes a log has many ways to fail, none of them is worth the run
            self.is_off = True
            run.say(f"{self.name} is no longer written, training continues: {type(error).__name__}: {error}")

    def on_end(self, run: Run, summary: Summary) -> None:
        """Closes the file."""
        if self.is_off:
            return
        try:
            self.close()
        except Exception as error:  # as above
            run.say(f"{self.name} could not be closed: {type(error).__name__}: {error}")


class JsonLines(RecordWriter):
    """Appends one JSON object a line; NaN and infinity become null."""

    def on_start(self, run: Run) -> None:
        """Opens nothing yet: the first record does."""
        self._path = run.folder / "metrics.jsonl"
        self._is_checked = self.is_off = False

    @property
    def name(self) -> str:
        """The file."""
        return str(self._path)

    def write(self, record: Record) -> None:
        """Appends a record, its step axis first."""
        line: dict[str, float | None] = {"env_steps": record.env_steps}
        line.update((name, value if math.isfinite(value) else None) for name, value in record.scalars.items())
        with open(self._path, "ab") as file:
            if not self._is_checked:
                self._end_broken_line(file.tell())
                self._is_checked = True
            file.write((json.dumps(line, allow_nan=False) + "\n").encode())

    def _end_broken_line(self, size: int) -> None:
        """Ends a line that a killed run had begun, so that it spoils no further record."""
        if size == 0:
            return
        with open(self._path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


class TensorBoard(RecordWriter):
    """Writes event files through tensorboardX, which is imported at the first record: that takes most of a second.

    It uses tensorboardX's events writer directly. The `SummaryWriter` above it hands events to a thread through a
    bounded queue; when that thread dies of a full disk, the next records wait for it for ever.
    """

    def on_start(self, run: Run) -> None:
        """Makes nothing yet: the first record does."""
        self._folder = run.folder / "tensorboard"
        self._start = run.start
        self._events: Any = None
        self.is_off = not run.config.with_tensorboard

    def write(self, record: Record) -> None:
        """Writes a record and flushes it to the file."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary as Scalars

        if self._events is None:
            from tensorboardX.event_file_writer import EventsWriter

            self._folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self._folder / "events"))
            if self._start.before is not None:  # TensorBoard hides what was recorded of later steps
                session = SessionLog(status=SessionLog.START)
                step = self._start.env_steps + 1
                self._events.write_event(Event(wall_time=time.time(), step=step, session_log=session))
        values = [Scalars.Value(tag=name, simple_value=value) for name, value in record.scalars.items()]
        self._events.write_event(Event(wall_time=time.time(), step=record.env_steps, summary=Scalars(value=values)))
        self._events.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._events is not None:
            self._events.close()
            self._events = None


class LogMessages(Observer):
    """Passes what the user should know to Python's logging."""

    def on_message(self, run: Run, text: str) -> None:
        """Logs it as a warning of the logger `asyncrl`."""
        log.warning("%s", text)
