"""One run: mean and deviation of the returns over its workers or ranks, and the moving average of the mean.

Each worker's or rank's return is the mean over its own last 100 episodes, and counts the same in the mean over them. So
that mean differs from the run's own return, as the progress line shows it: the mean over the last 100 episodes of all
workers, of which those with short episodes have more. `notes` says both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl.analysis.curves import Array, Band, mean_band, moving_average
from asyncrl.analysis.records import TRAIN_RETURN, Run, Unit
from asyncrl.config.errors import UsageError
from asyncrl.monitoring.metrics import EPISODE_WINDOW

_MOST_IN_WINDOW = 100


@dataclass(frozen=True)
class Trial:
    """Both panels of a run's figure.

    Attributes:
        members: numbers of the workers or ranks; empty if `returns` is the run's own curve of all of them.
        returns: over environment steps of all of them; the deviation is over them.
        window: records in the moving average; 1 where there is none to speak of.
        average: [G] float64, the moving average of the mean return.
    """

    run: str
    unit: Unit
    members: tuple[int, ...]
    returns: Band
    window: int
    average: Array

    def to_json(self) -> dict[str, Any]:
        """The numbers of both panels."""
        return {
            "run": self.run,
            f"{self.unit}s": list(self.members),
            "env_steps": self.returns.positions.tolist(),
            "mean": self.returns.mean.tolist(),
            "std": None if self.returns.std is None else self.returns.std.tolist(),
            "window": self.window,
            "moving_average": self.average.tolist(),
        }


def make_trial(run: Run, window: int | None) -> Trial:
    """Computes the figure of a run; without a window it is a tenth of the records, at most 100.

    Raises:
        UsageError: it has no returns, the curves of its workers or ranks have no steps in common, or there are no more
            records than the window has.
    """
    members, own = run.returns_by_unit(), run.curve(TRAIN_RETURN)
    if not members and len(own) == 0:
        raise UsageError(f"Run {run.name} has recorded no return yet: wait until an episode has ended.")
    returns = mean_band(list(members.values()), ddof=0) if members else Band(own.positions, own.values, None)
    count = len(returns.positions)
    if count == 0:
        whose = f"{run.name}'s {run.unit}s"
        raise UsageError(f"The curves of {whose} have no range of steps in common: wait until it has trained longer.")
    if window is None:
        window = min(_MOST_IN_WINDOW, max(1, count // 10))
    elif window > count:
        raise UsageError(
            f"--window={window} is more than the {count} records of {run.name}: the result would be a mean over all "
            "records so far. Give a smaller one."
        )
    return Trial(run.name, run.unit, tuple(members), returns, window, moving_average(returns.mean, window))


def notes(run: Run, trial: Trial) -> list[str]:
    """Sentences on what the figure does not show."""
    if not trial.members:
        return [
            f"{run.name} has no curves of single workers: the figure shows the mean over all of them, without a band."
        ]
    found = []
    count = run.num_workers if trial.unit == "worker" else run.num_ranks
    if count is not None and count != len(trial.members):
        found.append(f"{run.name} has curves of only {len(trial.members)} of its {count} {trial.unit}s.")
    own = run.curve(TRAIN_RETURN)
    if len(trial.members) > 1 and len(own) > 0:
        whose = "all workers" if trial.unit == "worker" else "rank 0"
        found.append(
            f"{run.name}: return {trial.returns.mean[-1]:,.1f} as the mean over {trial.unit}s, each over its last "
            f"{EPISODE_WINDOW} episodes; the progress line shows {own.values[-1]:,.1f}, the mean over the last "
            f"{EPISODE_WINDOW} episodes of {whose}."
        )
    return found
