"""One run: what its workers' returns are on average and how far apart, and their moving average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.plotting.curves import Array, Band, mean_band, moving_average
from asyncrl.plotting.runs import TRAIN_RETURN, Run


@dataclass(frozen=True)
class Trial:
    """Both panels of a run's figure.

    Attributes:
        run: the run's name.
        workers: numbers of the workers whose returns these are; empty if it is the run's own curve of all of them.
        returns: over environment steps of all workers; the deviation is over workers.
        window: records in the moving average.
        average: [G] float64, the moving average of the mean return.
    """

    run: str
    workers: tuple[int, ...]
    returns: Band
    window: int
    average: Array

    def to_json(self) -> dict[str, Any]:
        """The numbers of both panels."""
        return {
            "run": self.run,
            "workers": list(self.workers),
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
        UsageError: it has no returns, or its workers' curves have no steps in common.
    """
    workers = run.worker_returns()
    if workers:
        returns = mean_band(list(workers.values()), ddof=0)
        if len(returns.positions) == 0:
            raise UsageError(f"the curves of {run.name}'s workers have no range of steps in common: let it train on")
    else:
        curve = run.curve(TRAIN_RETURN)
        if len(curve) == 0:
            raise UsageError(f"{run.name} has recorded no return yet: let it train until an episode has ended")
        returns = Band(curve.positions, curve.values, None)
    return Trial(run.name, tuple(workers), returns, window, moving_average(returns.mean, window))


def notes(run: Run, trial: Trial) -> list[str]:
    """Sentences on what the figure does not show."""
    if not trial.workers:
        return [f"{run.name} has no curves of single workers: its mean over all of them is shown, without a band."]
    if run.num_workers is not None and run.num_workers != len(trial.workers):
        return [f"{run.name} has the curves of {len(trial.workers)} of its {run.num_workers} workers only."]
    return []
