"""Reads what a run's folder recorded. The run may be alive, or killed in the middle of a line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.plotting.curves import Curve, make_curve
from asyncrl.runtime.run_folder import RunFolder

TRAIN_RETURN, EVAL_RETURN = "rollout/ep_rew_mean", "eval/mean_reward"
_STEPS, _ELAPSED = "env_steps", "time/time_elapsed"
_OF_WORKER = re.compile(r"worker/(\d+)/(ep_rew_mean|env_steps)")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run, as recorded.

    Attributes:
        name: its folder's name, with the folder above where two runs would be called the same.
        path: its folder.
        config: settings by name, as config.yaml has them; empty if there is none.
        records: the records in their order, each with `env_steps`.
        recorded_workers: number of rollout workers by summary.json, None if that does not say.
    """

    name: str
    path: Path
    config: Mapping[str, Any]
    records: tuple[Record, ...]
    recorded_workers: int | None = None

    def curve(self, name: str) -> Curve:
        """A figure over the run's environment steps; empty if it was never recorded."""
        return make_curve((record[_STEPS], record[name]) for record in self.records if _is_number(record.get(name)))

    def elapsed(self) -> Curve:
        """Seconds since the command over environment steps: when each total was first recorded."""
        found = (record for record in self.records if _is_number(record.get(_ELAPSED)))
        return make_curve(((record[_STEPS], record[_ELAPSED]) for record in found), keep="first")

    def worker_returns(self) -> dict[int, Curve]:
        """Returns of each rollout worker over the run's environment steps, of all workers together; by worker."""
        curves = {worker: self.curve(f"worker/{worker}/ep_rew_mean") for worker in self._workers()}
        return {worker: curve for worker, curve in curves.items() if len(curve) > 0}

    @property
    def num_workers(self) -> int | None:
        """Rollout workers: as set, as the plan resolved them, or as many as recorded something; None if none tells."""
        configured = self.config.get("num_workers")
        if isinstance(configured, int) and configured > 0:
            return configured
        return self.recorded_workers or len(self._workers()) or None

    def _workers(self) -> list[int]:
        names = {name for record in self.records for name in record}
        return sorted({int(match[1]) for name in names if (match := _OF_WORKER.fullmatch(name))})


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Reads runs from their folders.

    Raises:
        UsageError: a folder is missing, given twice, or holds no records that can be read.
    """
    resolved = [path.expanduser().resolve() for path in paths]
    for idx, path in enumerate(resolved):
        if path in resolved[:idx]:
            raise UsageError(f"{paths[idx]} is given twice: name each run once")
    return [_read_run(path, name) for path, name in zip(resolved, unique_names(resolved), strict=True)]


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many of the last parts as tell all of them apart."""
    most = max((len(path.parts) for path in paths), default=0)
    for count in range(1, most + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def parse_records(text: str, source: str) -> tuple[Record, ...]:
    """Reads one record a line. A broken last line is left out: a killed run cut it, or a live one is writing it.

    Raises:
        UsageError: a line before the last is no record.
    """
    lines = text.splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse_record(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise UsageError(f"line {number} of {source} is not a record with env_steps: repair or delete that line")
    return tuple(records)


def _read_run(path: Path, name: str) -> Run:
    folder = RunFolder(path)
    if not path.is_dir():
        raise UsageError(f"there is no run {path}: give the folder of a run, TRAIN_DIR/EXPERIMENT")
    try:
        text = folder.metrics.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise UsageError(f"{path} has no {folder.metrics.name}: give the folder of a run that has trained") from None
    except OSError as error:
        raise UsageError(f"cannot read {folder.metrics}: {error.strerror or error}") from error
    records = parse_records(text, str(folder.metrics))
    if not records:
        raise UsageError(f"{folder.metrics} has no record yet: let the run train until it has written one")
    return Run(name, path, _read_config(folder.config), records, _read_recorded_workers(folder.summary))


def _parse_record(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and _is_number(record.get(_STEPS)) else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _read_config(path: Path) -> Mapping[str, Any]:
    """Settings as written, of whatever version wrote them: they are only looked at, not run."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{path} cannot be read as the settings of a run: {' '.join(str(error).split())}") from error
    return config if isinstance(config, dict) else {}


def _read_recorded_workers(path: Path) -> int | None:
    try:
        recorded = json.loads(path.read_text(encoding="utf-8")).get("num_workers")
    except (OSError, ValueError, AttributeError):
        return None
    return recorded if isinstance(recorded, int) and recorded > 0 else None
