"""What one run came to: its curve, its snapshots and their evaluations, as a line of the results."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

# Seconds, environment steps, return.
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Snapshot:
    """A policy as it was saved during training, evaluated after the end of the run.

    Attributes:
        seconds: from the command until the policy had been saved.
        env_steps: environment steps that it had been trained for.
        marks: the marks that it stands for, such as `30 s`, `25 %` and `end`.
        mean_return: mean return of the evaluation episodes.
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
        seed: of training; the evaluation has the same.
        conditions: what has to be the same for this result to be used again.
        env: id of the environment that was trained on, which an older Gymnasium has in an older version.
        versions: of the packages that the system ran with.
        startup_s: seconds from the command to the first environment step.
        seconds: from the command to the end of training.
        env_steps: environment steps that were trained.
        curve: mean return of the last 100 training episodes over time. Seconds count from the command.
        snapshots: evaluated policies in the order of their steps; the last one is the final policy.
        environment: what asyncrl and the machine were, as `asyncrl.runtime.provenance.describe` tells.
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

    @property
    def score(self) -> float:
        """Mean return of the final policy's evaluation episodes."""
        return self.snapshots[-1].mean_return

    @property
    def steps_per_s(self) -> float:
        """Environment steps trained a second, start-up left out."""
        return self.env_steps / max(self.seconds - self.startup_s, 1e-9)

    @property
    def evaluated_curve(self) -> tuple[Point, ...]:
        """The snapshots as a curve."""
        return tuple((snapshot.seconds, snapshot.env_steps, snapshot.mean_return) for snapshot in self.snapshots)

    def at_mark(self, mark: str) -> Snapshot | None:
        """Returns the snapshot that stands for a mark, None if the run ended before."""
        return next((snapshot for snapshot in self.snapshots if mark in snapshot.marks), None)

    def to_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads."""
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
