"""One run: what the returns of its workers or ranks are on average and how far apart, and their moving average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.plotting.curves import Array, Band, mean_band, moving_average
from asyncrl.plotting.runs import TRAIN_RETURN, Run, Unit


@dataclass(frozen=True)
class Trial:
    """Both panels of a run's figure.

    Attributes:
        run: the run's name.
        unit: whose returns these are: workers' or ranks'.
        members: their numbers; empty if it is the run's own curve of all of them.
        returns: over environment steps of all of them; the deviation is over them.
        window: records in the moving average.
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


def make_trial(run: Run, window: int) -> Trial:
    """Computes the figure of a run.

    Args:
        run: what it recorded.
        window: records in the moving average, at least 1.

    Raises:
        UsageError: it has no returns, or the curves of its workers or ranks have no steps in common.
    """
    members = run.returns_by_unit()
    if members:
        returns = mean_band(list(members.values()), ddof=0)
        if len(returns.positions) == 0:
            whose = f"{run.name}'s {run.unit}s"
            raise UsageError(f"the curves of {whose} have no range of steps in common: let it train on")
    else:
        curve = run.curve(TRAIN_RETURN)
        if len(curve) == 0:
            raise UsageError(f"{run.name} has recorded no return yet: let it train until an episode has ended")
        returns = Band(curve.positions, curve.values, None)
    return Trial(run.name, run.unit, tuple(members), returns, window, moving_average(returns.mean, window))


def notes(run: Run, trial: Trial) -> list[str]:
    """Sentences on what the figure does not show."""
    if not trial.members:
        return [f"{run.name} has no curves of single workers: its mean over all of them is shown, without a band."]
    count = run.count(trial.unit)
    if count is not None and count != len(trial.members):
        return [f"{run.name} has the curves of {len(trial.members)} of its {count} {trial.unit}s only."]
    return []
