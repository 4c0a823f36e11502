"""Results of a benchmark as JSON lines: each is written as soon as it is there, so that a stopped benchmark goes on."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrl.benchmarking.figures import LearningFigures, ThroughputFigures
from asyncrl.benchmarking.variants import Task


@dataclasses.dataclass(frozen=True)
class SimulationFigures:
    """Environment steps a second without a policy; `replayed` says whether a policy's episodes were played again."""

    env_steps_per_s: float
    replayed: bool


Figures = SimulationFigures | ThroughputFigures | LearningFigures

_TYPES: dict[str, type[Figures]] = {
    "simulation": SimulationFigures,
    "throughput": ThroughputFigures,
    "learning": LearningFigures,
}


class ResultStore:
    """Figures by task, kept in a file that only ever grows.

    A task is found again only with the same flags and conditions: what was measured otherwise is not mixed in.
    """

    def __init__(self, path: Path) -> None:
        """Reads what is there; a line that was cut off is ended and left out."""
        self._path = path
        self._figures: dict[Task, Figures] = {}
        self._code: dict[Task, str] = {}
        content = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in content.splitlines():
            self._read(line)
        self._needs_newline = content != "" and not content.endswith("\n")

    def get(self, task: Task) -> Figures | None:
        """Returns what was measured for a task under its conditions."""
        return self._figures.get(task)

    def code_of(self, tasks: Iterable[Task]) -> list[str]:
        """Returns the versions of the code that results of these tasks were measured with."""
        return sorted({self._code[task] for task in tasks if task in self._code})

    def add(self, task: Task, figures: Figures, code: str) -> None:
        """Keeps a result, and what code gave it; it is on the disk when this returns."""
        self._figures[task], self._code[task] = figures, code
        line = json.dumps({"task": dataclasses.asdict(task), "code": code, "figures": dataclasses.asdict(figures)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._needs_newline + line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._needs_newline = False

    def _read(self, line: str) -> None:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        task = entry["task"]
        lists = tuple(task["flags"]), tuple(task["conditions"])
        key = Task(task["kind"], task["name"], task["seed"], *lists, task.get("num_ranks", 1))
        self._figures[key], self._code[key] = _TYPES[key.kind](**entry["figures"]), entry["code"]
