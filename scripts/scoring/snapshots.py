"""Which of a run's saved policies are evaluated, and for which marks each of them stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scoring.tasks import STEP_MARKS, TIME_MARKS_S

END = "end"
"""Mark of the final policy."""

# A run saves at the first chance after a mark, on its own clock, which starts up to a second before the first step.
_CLOCK_TOLERANCE_S = 1.0


@dataclass(frozen=True)
class SavedPolicy:
    """A policy on the disk.

    Attributes:
        path: file or folder.
        saved_at: when it had been written, in seconds since the epoch.
        env_steps: environment steps that it had been trained for.
    """

    path: Path
    saved_at: float
    env_steps: int


def time_mark(seconds: float) -> str:
    """Returns the name of a mark in seconds of training."""
    return f"{seconds:g} s"


def step_mark(share: float) -> str:
    """Returns the name of a mark in shares of a task's steps."""
    return f"{100 * share:g} %"


def find_saved(paths: Iterable[Path]) -> list[SavedPolicy]:
    """Returns saved policies in the order of their steps, one for each number of steps.

    Args:
        paths: files, or folders that were written as a whole. The last number in a name is the environment steps.
    """
    found = {}
    for path in paths:
        env_steps = int(re.findall(r"\d+", path.stem)[-1])
        found[env_steps] = SavedPolicy(path, path.stat().st_mtime, env_steps)
    return [found[env_steps] for env_steps in sorted(found)]


def choose(saved: Sequence[SavedPolicy], first_step_at: float, env_steps: int) -> list[tuple[SavedPolicy, list[str]]]:
    """Chooses for each mark the first policy that was saved at or after it; the last one is the final policy.

    Args:
        saved: in the order of their steps, the final policy last.
        first_step_at: when the first environment step was made, in seconds since the epoch.
        env_steps: of the task.

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
