"""The ratings of a run as numbers and as a figure: `asyncrl plot elo`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.analysis import drawing
from asyncrl.analysis.curves import Curve
from asyncrl.analysis.plots import Plot
from asyncrl.analysis.records import Run
from asyncrl.config.errors import UsageError


@dataclass(frozen=True)
class Ratings:
    """Self-play of one run: Elo ratings of the policy and of its pool, and the share of games won against the pool.

    Attributes:
        run: name of the run.
        policy: rating of the policy.
        pool_mean, pool_min, pool_max: of the members' ratings, from the first member on.
        win_rate: over the last games against the pool.
    """

    run: str
    policy: Curve
    pool_mean: Curve
    pool_min: Curve
    pool_max: Curve
    win_rate: Curve

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers as plain data."""
        curves = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "run"}
        return {
            "run": self.run,
            **{
                name: {"env_steps": curve.positions.tolist(), "values": curve.values.tolist()}
                for name, curve in curves.items()
            },
        }

    def draw(self, path: Path) -> None:
        """Draws the ratings of policy and pool in the upper panel, the share of games won in the lower."""
        figure = drawing.new_figure(8.0, 7.0)
        upper, lower = figure.subplots(2, 1, sharex=True)
        policy, mean, low, high = self.policy, self.pool_mean, self.pool_min, self.pool_max
        upper.plot(
            policy.positions,
            policy.values,
            color=drawing.color(0),
            lw=1.8,
            label="policy",
            **drawing.point_marker(len(policy), most=20),
        )
        upper.plot(mean.positions, mean.values, color=drawing.color(1), lw=1.8, label="mean of the pool")
        upper.fill_between(
            low.positions, low.values, high.values, color=drawing.color(1), alpha=0.2, lw=0, label="range of the pool"
        )
        upper.set_ylabel("Elo rating")
        upper.set_title(self.run)
        won = self.win_rate
        lower.plot(won.positions, won.values, color=drawing.color(0), lw=1.8, **drawing.point_marker(len(won), most=20))
        lower.set_ylim(0.0, 1.0)
        lower.set_ylabel("share of games won against the pool")
        lower.set_xlabel(drawing.X_LABELS["env_steps"])
        for axes in (upper, lower):
            drawing.count_in_thousands(axes)
            drawing.finish(axes)
        drawing.save(figure, path)


def read_ratings(runs: Sequence[Run]) -> Ratings:
    """Reads the ratings of one run.

    Raises:
        UsageError: it has recorded no games against a pool.
    """
    (run,) = runs
    names = ("elo", "pool_elo_mean", "pool_elo_min", "pool_elo_max", "win_rate")
    curves = [run.curve(f"self_play/{name}") for name in names]
    if len(curves[-1]) == 0:
        raise UsageError(f"Run {run.name} has recorded no games against a pool: train with --self_play=True.")
    return Ratings(run.name, *curves)


PLOT = Plot(
    "Draw the Elo ratings of each run's policy and of its self-play pool, and the share of games that it won "
    "against the pool.",
    "elo train_dir/my_game",
    "Self-play",
    read_ratings,
)
