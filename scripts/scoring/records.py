"""The result of one run: its curve, and the evaluations of its snapshots, which policies at fixed marks are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoring.tasks import STEP_MARKS, TIME_MARKS_S

END = "end"
"""Mark of the final policy."""

# A run saves after a mark, on its own clock, which starts up to a second before the first step.
_CLOCK_TOLERANCE_S = 1.0

# Seconds, environment steps, return.
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Snapshot:
    """A policy that was saved during training and evaluated after the run.

    Attributes:
        seconds: time from the command until the policy was saved.
        env_steps: environment steps of its training.
        marks: its marks, such as `30 s`, `25 %` and `end`.
        mean_return: mean return of the evaluation episodes, with sampled actions.
    """

    seconds: float
    env_steps: int
    marks: tuple[str, ...]
    mean_return: float


@dataclass(frozen=True)
class Record:
    """One run of one system with one seed on one task.

    Attributes:
        task: id of the task's environment.
        system: name of the system.
        seed: seed of training and evaluation.
        conditions: conditions under which the result is used again.
        env: id of the environment in the system's Gymnasium, which may have an older version.
        versions: versions of the system's packages.
        startup_s: seconds from the command to the first environment step.
        seconds: seconds from the command to the end of training.
        env_steps: environment steps of training.
        curve: mean return of the last 100 training episodes; seconds count from the command.
        snapshots: evaluated policies in the order of their steps; the last one is the final policy.
        environment: versions and machine, from `asyncrl.storage.provenance.describe`.
        deterministic_score: mean return of the final policy's deterministic actions; None in results from before it was
            measured.
    """

    task: str
    system: str
    seed: int
    conditions: dict[str, Any]
    env: str
    versions: str
    startup_s: float
    seconds: float
    env_steps: int
    curve: tuple[Point, ...]
    snapshots: tuple[Snapshot, ...]
    environment: dict[str, Any]
    deterministic_score: float | None = None

    @property
    def score(self) -> float:
        """Mean return of the final policy's sampled actions."""
        return self.snapshots[-1].mean_return

    @property
    def steps_per_s(self) -> float:
        """Environment steps trained per second, start-up excluded."""
        return self.env_steps / max(self.seconds - self.startup_s, 1e-9)

    @property
    def evaluated_curve(self) -> tuple[Point, ...]:
        return tuple((snapshot.seconds, snapshot.env_steps, snapshot.mean_return) for snapshot in self.snapshots)

    def at_mark(self, mark: str) -> Snapshot | None:
        """Returns the snapshot of a mark; None if the run ended before."""
        return next((snapshot for snapshot in self.snapshots if mark in snapshot.marks), None)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Record:
        """Reads a record as `to_json` wrote it.

        Raises:
            KeyError, TypeError: the entry is of another kind.
        """
        seconds_steps_return = tuple((point[0], point[1], point[2]) for point in entry["curve"])
        snapshots = tuple(Snapshot(**{**item, "marks": tuple(item["marks"])}) for item in entry["snapshots"])
        return cls(**{**entry, "curve": seconds_steps_return, "snapshots": snapshots})


@dataclass(frozen=True)
class SavedPolicy:
    """A saved policy; `saved_at` is in seconds since the epoch."""

    path: Path
    saved_at: float
    env_steps: int


def time_mark(seconds: float) -> str:
    return f"{seconds:g} s"


def step_mark(share: float) -> str:
    return f"{100 * share:g} %"


def find_saved(paths: Iterable[Path]) -> list[SavedPolicy]:
    """Returns saved policies in the order of their steps, which are the last number in the name of a path."""
    found = {}
    for path in paths:
        env_steps = int(re.findall(r"\d+", path.stem)[-1])
        found[env_steps] = SavedPolicy(path, path.stat().st_mtime, env_steps)
    return [found[env_steps] for env_steps in sorted(found)]


def choose(saved: Sequence[SavedPolicy], first_step_at: float, env_steps: int) -> list[tuple[SavedPolicy, list[str]]]:
    """Chooses the first policy that was saved at or after each mark, and the final policy.

    Args:
        saved: policies in the order of their steps, the final policy last.
        first_step_at: time of the first environment step, in seconds since the epoch.
        env_steps: environment steps of the task.

    Returns:
        Each chosen policy with its marks, in the order of the steps.
    """
    marks: dict[int, list[str]] = {}
    for share in STEP_MARKS:
        reached = (idx for idx, policy in enumerate(saved) if policy.env_steps >= share * env_steps)
        _add(marks, next(reached, None), step_mark(share))
    for seconds in TIME_MARKS_S:
        since = first_step_at + seconds - _CLOCK_TOLERANCE_S
        reached = (idx for idx, policy in enumerate(saved) if policy.saved_at >= since)
        _add(marks, next(reached, None), time_mark(seconds))
    _add(marks, len(saved) - 1, END)
    return [(saved[idx], marks[idx]) for idx in sorted(marks)]


def _add(marks: dict[int, list[str]], idx: int | None, mark: str) -> None:
    if idx is not None:
        marks.setdefault(idx, []).append(mark)
