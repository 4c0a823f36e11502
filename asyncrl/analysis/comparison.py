"""Several runs over one axis, those that differ only in their seeds as one group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from asyncrl.analysis.curves import Band, Curve, make_curve, mean_band
from asyncrl.analysis.records import EVAL_RETURN, TRAIN_RETURN, Run, Unit, differing_settings
from asyncrl.config.errors import UsageError

XAxis = Literal["per_worker_steps", "per_rank_steps", "total_steps", "wall_time"]
Metric = Literal["train", "eval"]

_METRICS: dict[Metric, str] = {"train": TRAIN_RETURN, "eval": EVAL_RETURN}
# Date and time of a name that the program chose, or a number. The 3 of lr1e-3 is neither.
_SUFFIX = re.compile(r"_\d{8}-\d{6}$|(?:[_-]seed[_-]?|_|(?<!\de)-)\d+$")


@dataclass(frozen=True)
class Group:
    """Runs that are one line of the figure: the curve of each, and the band over them where all have values."""

    name: str
    runs: tuple[str, ...]
    curves: tuple[Curve, ...]
    band: Band

    def to_json(self) -> dict[str, Any]:
        """The numbers of the line."""
        return {
            "name": self.name,
            "runs": list(self.runs),
            "x": self.band.positions.tolist(),
            "mean": self.band.mean.tolist(),
            "std": None if self.band.std is None else self.band.std.tolist(),
        }


@dataclass(frozen=True)
class Comparison:
    """The figure: returns by `metric` of every group of runs in `env`, over `x` in environment steps or seconds."""

    env: str
    x: XAxis
    metric: Metric
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers of all lines."""
        groups = [group.to_json() for group in self.groups]
        return {"env": self.env, "x": self.x, "metric": self.metric, "groups": groups}

    def summary(self) -> list[str]:
        """One line for each group: its number of runs, and its return at the end."""
        unit = "s" if self.x == "wall_time" else "steps"
        lines = []
        for group in self.groups:
            band = group.band
            last = f"{band.mean[-1]:,.1f}" + ("" if band.std is None else f" +- {band.std[-1]:,.1f}")
            count = f"{len(group.runs)} run" + ("s" if len(group.runs) > 1 else "")
            longest = max(curve.positions[-1] for curve in group.curves)
            end = " (end of its shortest run)" if longest > 1.05 * band.positions[-1] else ""
            lines.append(f"{group.name} ({count}): return {last} at {band.positions[-1]:,.0f} {unit}{end}")
        return lines


def compare(runs: Sequence[Run], x: XAxis, metric: Metric, pattern: re.Pattern[str] | None) -> Comparison:
    """Computes the figure; for `x` and `metric` see `curve_over`, for `pattern` `group_runs`.

    Raises:
        UsageError: a run lacks what the axis or the metric needs, or a group's curves have no range in common.
    """
    groups = []
    for name, of_group in group_runs(runs, pattern).items():
        members = tuple(run.name for run in of_group)
        curves = tuple(curve_over(run, x, metric) for run in of_group)
        band = mean_band(curves, ddof=1)
        if len(band.positions) == 0:
            raise UsageError(
                f"Group {name} has no mean: the curves of {', '.join(members)} have no range in common. "
                "Choose other runs or another --group."
            )
        groups.append(Group(name, members, curves, band))
    envs = dict.fromkeys(str(run.config["env"]) for run in runs if "env" in run.config)
    return Comparison(", ".join(envs), x, metric, tuple(groups))


def group_runs(runs: Iterable[Run], pattern: re.Pattern[str] | None) -> dict[str, list[Run]]:
    """Puts runs that are averaged into groups, in the order in which they come.

    With a pattern, runs whose names have the same first capture group (without one, the same match) are a group; a run
    in whose name it finds nothing is alone. Without one, a group is runs with the same settings, but for seed, length
    and place, and with names that differ only in a number or in date and time at the end; its name is what their names
    have in common, with the settings in which it differs from others of that name. A run that is alone in that keeps
    its full name.
    """
    groups: dict[str, list[Run]] = {}
    if pattern is not None:
        for run in runs:
            match = pattern.search(run.name)
            found = match and match[1 if pattern.groups else 0]
            groups.setdefault(found or run.name, []).append(run)
        return groups
    by_stem: dict[str, list[Run]] = {}
    for run in runs:
        by_stem.setdefault(_SUFFIX.sub("", run.name), []).append(run)
    for stem, of_stem in by_stem.items():
        differing = differing_settings(of_stem)
        for run in of_stem:
            values = ", ".join(f"{name}={run.config.get(name)}" for name in differing)
            name = run.name if len(of_stem) == 1 else stem
            groups.setdefault(f"{name} ({values})" if values else name, []).append(run)
    return groups


def curve_over(run: Run, x: XAxis, metric: Metric) -> Curve:
    """Returns a run's returns over an axis.

    An evaluation's time is that at which its policy had trained for its steps, between two records by a straight line.

    Raises:
        UsageError: the run has no such returns, or its workers or its times are not known.
    """
    curve = run.curve(_METRICS[metric])
    if len(curve) == 0:
        missing = "return of training episodes" if metric == "train" else "evaluation"
        instead = "wait until an episode has ended" if metric == "train" else "choose --metric=train"
        raise UsageError(f"Run {run.name} has recorded no {missing}: {instead}.")
    if x == "wall_time":
        elapsed = run.elapsed()
        if len(elapsed) == 0:
            raise UsageError(f"Run {run.name} has recorded no time/time_elapsed: choose --x=total_steps.")
        seconds = np.interp(curve.positions, elapsed.positions, elapsed.values)
        # Before the first and after the last record times are equal: the last of such points stays.
        return make_curve(zip(seconds.tolist(), curve.values.tolist(), strict=True))
    units: dict[XAxis, Unit] = {"per_worker_steps": "worker", "per_rank_steps": "rank"}
    divisor = run.count(units[x], "Choose --x=total_steps.") if x in units else 1
    return Curve(curve.positions / divisor, curve.values)
