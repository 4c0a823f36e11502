"""Observers that write records, episodes and messages to files and the log. A file that fails ends no run."""

from __future__ import annotations

import abc
import contextlib
import csv
import io
import json
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.observers.observer import Observer, Run, log
from asyncrl.observers.reports import EpisodeRecord
from asyncrl.observers.status import Record
from asyncrl.observers.summary import Summary
from asyncrl.storage.run_folder import EPISODE_COLUMNS, has_broken_line


class RecordWriter(Observer, abc.ABC):
    """Writes every record until a write fails; then it tells the user and writes no more."""

    is_off = False

    @abc.abstractmethod
    def write(self, record: Record) -> None:
        """Writes one record; any exception means that it could not."""

    def close(self) -> None:
        """Flushes and closes the file."""

    @property
    def name(self) -> str:
        """Name in messages."""
        return type(self).__name__

    def on_record(self, run: Run, record: Record) -> None:
        if self.is_off:
            return
        try:
            self.write(record)
        except Exception as error:  # libraries that write logs raise many types; none of them is worth the run
            self.is_off = True
            run.say(f"{self.name} is no longer written, training continues: {type(error).__name__}: {error}")

    def on_end(self, run: Run, summary: Summary) -> None:
        if self.is_off:
            return
        try:
            self.close()
        except Exception as error:
            run.say(f"{self.name} could not be closed: {type(error).__name__}: {error}")


class JsonLines(RecordWriter):
    """Appends one JSON object per line to `metrics.jsonl`; NaN and infinity become null."""

    def on_start(self, run: Run) -> None:
        """Takes the path; the first record opens the file."""
        self._path = run.folder / "metrics.jsonl"
        self._is_checked = self.is_off = False

    @property
    def name(self) -> str:
        return str(self._path)

    def write(self, record: Record) -> None:
        line: dict[str, float | None] = {"env_steps": record.env_steps}
        line.update((name, value if math.isfinite(value) else None) for name, value in record.scalars.items())
        text = json.dumps(line, allow_nan=False) + "\n"
        if not self._is_checked:  # a killed run may have left a line unfinished
            text = "\n" * has_broken_line(self._path) + text
            self._is_checked = True
        with open(self._path, "ab") as file:
            file.write(text.encode())


@contextlib.contextmanager
def _without_comet() -> Iterator[None]:
    """Hides comet_ml: tensorboardX imports it where it is installed, which takes seconds, and no record needs it."""
    if "comet_ml" in sys.modules:
        yield
        return
    sys.modules["comet_ml"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["comet_ml"]


class TensorBoard(RecordWriter):
    """Writes event files with tensorboardX, which the first record imports because that takes most of a second.

    It uses tensorboardX's `EventsWriter` directly. `SummaryWriter` passes events through a bounded queue to a thread;
    if a full disk ends that thread, later records wait for it forever.
    """

    def on_start(self, run: Run) -> None:
        """Takes the folder; the first record creates the file."""
        self._folder = run.folder / "tensorboard"
        self._purged_from: int | None = None  # first step whose earlier records TensorBoard hides
        if run.start.before is not None:
            self._purged_from = run.start.env_steps + 1
        elif self._folder.is_dir() and any(self._folder.iterdir()):  # it ended before its first checkpoint
            self._purged_from = 0
        self._events: Any = None
        self.is_off = not run.config.with_tensorboard

    def write(self, record: Record) -> None:
        with _without_comet():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.proto.summary_pb2 import Summary as Scalars

        if self._events is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self._folder / "events"))
            if self._purged_from is not None:
                session = SessionLog(status=SessionLog.START)
                self._events.write_event(Event(wall_time=time.time(), step=self._purged_from, session_log=session))
        values = [Scalars.Value(tag=name, simple_value=value) for name, value in record.scalars.items()]
        self._events.write_event(Event(wall_time=time.time(), step=record.env_steps, summary=Scalars(value=values)))
        self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


class EpisodesCsv(RecordWriter):
    """Writes every training episode to `episodes/N.monitor.csv`, which the readers of Stable-Baselines3's Monitor take.

    The columns are return, length, seconds since the file's `t_start`, the run's environment steps, the policy of
    several, and the environment's own numbers. A start of the run begins a file, and so does an episode with a number
    that no episode before it had. A resumed run first deletes the episodes after its checkpoint
    (`RunFolder.forget_after`).
    """

    def on_start(self, run: Run) -> None:
        """Takes the folder; the first record writes the file."""
        self._folder = run.folder / "episodes"
        self._env_id = run.config.env_id
        self._shows_policy = run.plan.num_policies > 1
        self._path: Path | None = None
        self._lines: list[str] = []
        self._names: dict[str, None] = {}  # of the environment's numbers, in the order of the columns
        self._t_start = time.time()
        self._last_t = 0.0
        self.is_off = False

    @property
    def name(self) -> str:
        return str(self._folder)

    def on_episode(self, run: Run, episode: EpisodeRecord) -> None:
        if self.is_off:
            return
        # Episodes arrive in groups about once a second: their times increase, so that sorting keeps their order.
        self._last_t = max(time.time() - self._t_start, self._last_t + 1e-6)
        stats = episode.extra_stats
        if stats.keys() != self._names.keys() and not stats.keys() <= self._names.keys():
            self._flush_lines()
            self._names.update(dict.fromkeys(stats))
            self._path = None
        cells = [f"{episode.episode_return:.6f}", str(episode.length), f"{self._last_t:.6f}", str(run.env_steps)]
        if self._shows_policy:
            cells.append(str(episode.policy_idx))
        cells += [str(stats.get(name, "")) for name in self._names]
        self._lines.append(",".join(cells))

    def write(self, record: Record) -> None:
        self._flush_lines()

    def close(self) -> None:
        self._flush_lines()

    def _flush_lines(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._path is None:
            self._folder.mkdir(exist_ok=True)
            self._path = self._folder / f"{len(list(self._folder.glob('*.monitor.csv')))}.monitor.csv"
            policy = ("policy",) if self._shows_policy else ()
            columns = (*EPISODE_COLUMNS, *policy, *self._names)
            lines = [*monitor_header(self._t_start, self._env_id, columns), *lines]
        with open(self._path, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def monitor_header(t_start: float, env_id: str, columns: Iterable[str]) -> list[str]:
    """The first two lines of a file that the readers of Stable-Baselines3's Monitor take.

    Args:
        t_start: seconds since 1970 from which the column `t` counts.
        env_id: the environment.
        columns: their names, of which the first three are return (`r`), length (`l`) and time (`t`).
    """
    header = io.StringIO()
    csv.writer(header, lineterminator="").writerow(columns)
    return [f"#{json.dumps({'t_start': t_start, 'env_id': env_id})}", header.getvalue()]


class LogMessages(Observer):
    """Passes messages to Python's logging, as warnings of the logger `asyncrl`; the preset as information."""

    def on_message(self, run: Run, text: str) -> None:
        log.log(logging.INFO if text.startswith("preset ") else logging.WARNING, "%s", text)
