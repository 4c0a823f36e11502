"""Reads the records of runs and measurements. Their writer may be at work, or may have been killed within a line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from asyncrl.analysis.curves import Curve, make_curve
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.config.schema import OF_ONE_START
from asyncrl.storage.locating import TRAIN_DIR, locate
from asyncrl.storage.run_folder import RunFolder, has_broken_line

TRAIN_RETURN, EVAL_RETURN = "rollout/ep_rew_mean", "eval/mean_reward"
STEPS, ELAPSED, CORES = "env_steps", "time/time_elapsed", "perf/cores_in_use"
_OF_WORKER = re.compile(r"worker/(\d+)/(ep_rew_mean|env_steps)")

_FIRST_RECORDS, _FIRST_S = 3, 5.0

# Settings that may differ between runs of one experiment.
_MAY_DIFFER = {"seed", "train_for_env_steps", *OF_ONE_START}

Record = Mapping[str, Any]
Unit = Literal["worker", "rank"]
"""Parts of a run with separate curves."""


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file, if it exists. Other lines, such as a broken last one, are skipped."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [entry for entry in map(_parse, lines) if isinstance(entry, dict)]


def append_json_line(path: Path, entry: Mapping[str, Any]) -> None:
    """Appends an object and syncs it to the disk; a broken last line is ended first."""
    end_of_line = "\n" * has_broken_line(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(end_of_line + json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> tuple[Record, ...]:
    """Reads a metrics.jsonl; returns no records if the file does not exist.

    A broken last line is left out: the run was killed, or is writing it now.

    Raises:
        UsageError: another line is not a record, or the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}.") from error
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if isinstance(record, dict) and _is_number(record.get(STEPS)):
            records.append(record)
        elif number < len(lines):
            raise UsageError(f"Line {number} of {path} is not a record with env_steps: repair or delete that line.")
    return tuple(records)


@dataclass(frozen=True)
class Run:
    """The files of one run.

    Attributes:
        name: name of its folder, with folders above it if two runs have the same name.
        path: its folder.
        config: settings by name, from config.yaml; empty without the file.
        records: records of the first rank, each with `env_steps` of all ranks.
        recorded_workers: number of rollout workers of each rank, from summary.json; None if unknown.
        other_ranks: records of each other rank; none of a rank whose folder is on another machine.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    records: tuple[Record, ...]
    recorded_workers: int | None = None
    other_ranks: tuple[tuple[Record, ...], ...] = ()

    def curve(self, name: str) -> Curve:
        """Returns a figure of the first rank over the run's environment steps; empty if it was never recorded."""
        return _curve(self.records, name)

    def elapsed(self) -> Curve:
        """Returns seconds since the command over environment steps, at the first record of each total."""
        found = (record for record in self.records if _is_number(record.get(ELAPSED)))
        return make_curve(((record[STEPS], record[ELAPSED]) for record in found), keep="first")

    def processor_time(self) -> Curve:
        """Returns seconds of processor time of all ranks over environment steps; empty if a rank recorded none."""
        elapsed = self.elapsed()
        of_ranks = [_processor_time(records) for records in (self.records, *self.other_ranks)]
        if any(len(curve) == 0 for curve in of_ranks):
            return make_curve(())
        seconds = [np.interp(elapsed.values, curve.positions, curve.values) for curve in of_ranks]
        return Curve(elapsed.positions, np.sum(seconds, axis=0))

    @property
    def unit(self) -> Unit:
        """The parts with separate curves: ranks if there are several, otherwise workers."""
        return "rank" if self.other_ranks else "worker"

    def returns_by_unit(self, over_own_steps: bool = False) -> dict[int, Curve]:
        """Returns the return curve of each rank or rollout worker, by its index.

        Curves are over the environment steps of all, or with `over_own_steps` over those of each: a worker's are
        recorded; a rank's are the steps of all divided by the number of ranks. Over the steps of all, a worker has NaN
        where the run had been resumed with fewer workers.
        """
        if self.other_ranks:
            parts = self.num_ranks if over_own_steps else 1
            of_ranks = enumerate((self.records, *self.other_ranks))
            curves = {rank: _curve(records, TRAIN_RETURN, parts=parts) for rank, records in of_ranks}
        else:
            curves = {}
            present = self._workers_of_records()
            for worker in self._workers():
                name, own_steps = f"worker/{worker}/ep_rew_mean", f"worker/{worker}/env_steps"
                curve = _curve(self.records, name, own_steps if over_own_steps else STEPS)
                if len(curve) > 0 and not over_own_steps:
                    gaps = [(steps, math.nan) for steps, workers in present if worker not in workers]
                    curve = make_curve([*gaps, *zip(curve.positions, curve.values, strict=True)])
                curves[worker] = curve
        return {number: curve for number, curve in curves.items() if len(curve) > 0}

    def lasting_units(self) -> set[int]:
        """Returns the ranks or workers of the whole run: those that no resume has added or left out."""
        if self.other_ranks:
            # Ranks that start together write their first records at about the same time and step.
            elapsed = self.elapsed()
            early = elapsed.positions[elapsed.values <= elapsed.values[:1] + _FIRST_S]
            together = max([self.records[:_FIRST_RECORDS][-1][STEPS], *early])
            begins = {rank: records[0][STEPS] for rank, records in enumerate(self.other_ranks, start=1) if records}
            return {0, *(rank for rank, begin in begins.items() if begin <= together)}
        return set(self._workers()).intersection(*(workers for _, workers in self._workers_of_records()))

    def count(self, unit: Unit, remedy: str) -> int:
        """Returns the number of workers or ranks; raises UsageError, which ends with the remedy, if it is unknown."""
        count = self.num_workers if unit == "worker" else self.num_ranks
        if count is None:
            raise UsageError(
                f"The number of workers of {self.name} is unknown: config.yaml has no number and metrics.jsonl no "
                f"curves of workers. {remedy}"
            )
        return count

    @property
    def num_ranks(self) -> int:
        """Number of ranks that trained it."""
        return 1 + len(self.other_ranks)

    @property
    def num_workers(self) -> int | None:
        """Rollout workers of all ranks: as planned, as set, or as many as have records; None if unknown."""
        of_rank, configured = self.recorded_workers, self.config.get("num_workers")
        if of_rank is None and isinstance(configured, int) and configured > 0:
            of_rank = configured + sum(load(place)(self.config) for place in hooks("WORKERS").values())
        return (of_rank or len(self._workers())) * self.num_ranks or None

    def _workers_of_records(self) -> list[tuple[float, set[int]]]:
        """Environment steps and workers of each record that has workers: a resumed run may have other ones."""
        names = {worker: f"worker/{worker}/env_steps" for worker in self._workers()}
        found = (
            (record[STEPS], {worker for worker, name in names.items() if name in record}) for record in self.records
        )
        return [(steps, workers) for steps, workers in found if workers]

    def _workers(self) -> list[int]:
        names = {name for record in self.records for name in record}
        return sorted({int(match[1]) for name in names if (match := _OF_WORKER.fullmatch(name))})


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """Returns the settings, other than seed, length and place, in which runs with known settings differ."""
    configs = [run.config for run in runs if run.config]
    names = {name for config in configs for name in config} - _MAY_DIFFER
    return sorted(name for name in names if len({repr(config.get(name)) for config in configs}) > 1)


class NoRecords(UsageError):
    """A path that exists has no records: it is not a run, or the run has not trained yet."""


def read_runs(paths: Sequence[Path], say: Callable[[str], None]) -> list[Run]:
    """Reads runs from their folders.

    Args:
        paths: the folders, or names of runs in `TRAIN_DIR`.
        say: shows a line about each path without records, which is left out.

    Raises:
        UsageError: a folder is missing, given twice, or cannot be read; or none of them has records.
    """
    resolved = [locate(path).resolve() for path in paths]
    for idx, path in enumerate(resolved):
        if path in resolved[:idx]:
            raise UsageError(f"Run {paths[idx]} is given twice: name each run once.")
    runs: list[Run] = []
    without: list[NoRecords] = []
    for path, name in zip(resolved, unique_names(resolved), strict=True):
        try:
            runs.append(_read_run(path, name))
        except NoRecords as error:
            without.append(error)
    if without and not runs:
        raise UsageError(*map(str, without))
    for each in without:
        say(f"left out: {each}")
    return runs


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of each path, as many as make all of them different."""
    for count in range(1, max((len(path.parts) for path in paths), default=0)):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _read_run(path: Path, name: str) -> Run:
    folder = RunFolder(path)
    if path.is_file():
        raise NoRecords(f"{path} is a file: give the folder of a run that has trained.")
    if not path.is_dir():
        raise UsageError(f"There is no run {path}: give its folder's path, or its name in {TRAIN_DIR}.")
    of_ranks = list(map(read_records, folder.rank_metrics))
    if not folder.metrics.exists():
        raise NoRecords(f"{path} has no {folder.metrics.name}: give the folder of a run that has trained.")
    if not of_ranks[0]:
        raise NoRecords(f"{folder.metrics} has no record yet: let the run train until it has written one.")
    summary = _parse(folder.summary.read_text(encoding="utf-8", errors="replace")) if folder.summary.is_file() else None
    workers = summary.get("num_workers") if isinstance(summary, dict) else None
    workers = workers if isinstance(workers, int) and workers > 0 else None
    try:  # settings of any version of asyncrl: they are only compared
        config = yaml.safe_load(folder.config.read_text(encoding="utf-8")) if folder.config.exists() else {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{folder.config} cannot be read as the settings of a run: {reason}.") from error
    return Run(name, path, config if isinstance(config, dict) else {}, of_ranks[0], workers, tuple(of_ranks[1:]))


def _curve(records: Sequence[Record], name: str, steps: str = STEPS, parts: int = 1) -> Curve:
    """A figure over the steps of this name, divided by `parts`."""
    found = [record for record in records if _is_number(record.get(name)) and _is_number(record.get(steps))]
    return make_curve((record[steps] / parts, record[name]) for record in found)


def _processor_time(records: Sequence[Record]) -> Curve:
    """Seconds of processor time of one rank over seconds since the command, which records hold as cores in use."""
    points, cpu_s, before_s, most_s = [], 0.0, 0.0, 0.0
    for record in records:
        if _is_number(record.get(CORES)) and _is_number(record.get(ELAPSED)):
            cpu_s += record[CORES] * max(0.0, record[ELAPSED] - before_s)
            # A resumed run continues at the time of its checkpoint, which is before the last record.
            before_s, most_s = record[ELAPSED], max(most_s, record[ELAPSED])
            points.append((most_s, cpu_s))
    return make_curve(points)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
