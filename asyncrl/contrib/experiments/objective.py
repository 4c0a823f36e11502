"""What a sweep optimizes, computed from the evaluations of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from asyncrl.analysis.records import ELAPSED, EVAL_RETURN, STEPS, read_records
from asyncrl.analysis.statistics import first_reached

Kind = Literal["return", "steps_to_threshold", "seconds_to_threshold", "return_per_second"]
_MOST_SECONDS = 1e6
"""More than any run of a sweep takes. With its own length instead, a short run that learns nothing would seem good."""


@dataclass(frozen=True)
class Evaluated:
    """One evaluation during training.

    Attributes:
        env_steps: environment steps that the policy was trained on.
        seconds: seconds of training until then.
        mean_return: mean return of its episodes.
    """

    env_steps: int
    seconds: float
    mean_return: float


@dataclass(frozen=True)
class Objective:
    """A number for a run.

    Attributes:
        kind: `return`: of the last evaluation; `steps_to_threshold` or `seconds_to_threshold`: until the first
            evaluation that reaches the threshold; `return_per_second`: return of the last evaluation above the
            baseline, for each second of training.
        threshold: return to reach.
        baseline: return of a policy that is worth nothing.
    """

    kind: Kind
    threshold: float = math.inf
    baseline: float = 0.0

    @property
    def name(self) -> str:
        """The kind in words: each return in it is that of an evaluation."""
        return self.kind.replace("_", " ").replace("return", "evaluation return")

    @property
    def is_minimized(self) -> bool:
        return self.kind.endswith("_to_threshold")

    @property
    def needs_seconds(self) -> bool:
        return "second" in self.kind

    def is_decided(self, evaluations: Sequence[Evaluated]) -> bool:
        """Whether more training would not change the value."""
        return self.is_minimized and any(each.mean_return >= self.threshold for each in evaluations)

    def value(self, evaluations: Sequence[Evaluated], env_steps: int) -> float:
        """The number for a run that has ended.

        A run that stays below the threshold counts as its whole length in steps, or as `_MOST_SECONDS`, and up to as
        much again, the more the further its best evaluation stays below. Below the baseline, `return_per_second` is the
        distance to the baseline: to divide it by time would prefer slow runs.

        Args:
            evaluations: the run's evaluations, at least one, by steps.
            env_steps: the run's length in environment steps.
        """
        last = evaluations[-1]
        if self.kind == "return":
            return last.mean_return
        if self.kind == "return_per_second":
            gain = last.mean_return - self.baseline
            return gain / max(1.0, last.seconds) if gain > 0 else gain
        is_steps = self.kind == "steps_to_threshold"
        curve = [(each.env_steps if is_steps else each.seconds, each.mean_return) for each in evaluations]
        reached = first_reached(curve, self.threshold)
        if math.isfinite(reached):
            return reached
        missing = self.threshold - max(each.mean_return for each in evaluations)
        return (env_steps if is_steps else _MOST_SECONDS) * (1.0 + missing / (missing + max(1.0, abs(self.threshold))))

    def so_far(self, evaluations: Sequence[Evaluated]) -> float:
        """The number by which a run is compared with others after equally many steps; better in the same direction."""
        if self.is_minimized:
            return -evaluations[-1].mean_return
        return self.value(evaluations, 0)


def read_evaluations(metrics: Path) -> list[Evaluated]:
    """Reads the evaluations of a run from its metrics.jsonl, by steps."""
    records = read_records(metrics)
    times = [(record[STEPS], record[ELAPSED]) for record in records if record.get(ELAPSED) is not None]
    found = sorted((record[STEPS], record[EVAL_RETURN]) for record in records if record.get(EVAL_RETURN) is not None)
    if not found:
        return []
    known_steps, known_seconds = zip(*times, strict=True) if times else ((0,), (0.0,))
    seconds = np.interp([step for step, _ in found], known_steps, known_seconds)
    return [Evaluated(int(step), float(at), float(value)) for (step, value), at in zip(found, seconds, strict=True)]
