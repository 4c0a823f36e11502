"""Several runs over one axis, those that differ only in their seeds as one group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from asyncrl.config.errors import UsageError
from asyncrl.plotting.curves import Band, Curve, make_curve, mean_band
from asyncrl.plotting.runs import EVAL_RETURN, TRAIN_RETURN, Run

XAxis = Literal["per_worker_steps", "per_rank_steps", "total_steps", "wall_time"]
Metric = Literal["train", "eval"]

_METRICS: dict[Metric, str] = {"train": TRAIN_RETURN, "eval": EVAL_RETURN}
# The ends of lr1e-3 and of a name that was made of date and time are no seeds.
_SEED = re.compile(r"(?:[_-]seed|(?<!\de)(?<!_\d{8})-)\d+$")


@dataclass(frozen=True)
class Group:
    """Runs that are one line of the figure.

    Attributes:
        name: what they are called together.
        runs: their names.
        curves: the curve of each.
        band: mean and standard deviation over them, where all of them have values.
    """

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
    """The figure: returns by `metric` of every group, over `x` in environment steps or seconds."""

    x: XAxis
    metric: Metric
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers of all lines."""
        return {"x": self.x, "metric": self.metric, "groups": [group.to_json() for group in self.groups]}


def compare(runs: Sequence[Run], x: XAxis, metric: Metric, pattern: re.Pattern[str] | None) -> Comparison:
    """Computes the figure.

    Args:
        runs: what they recorded.
        x: the axis, see `curve_over`.
        metric: returns of training or of evaluations.
        pattern: what groups runs, see `group_names`.

    Raises:
        UsageError: a run lacks what the axis or the metric needs, or a group's curves have no range in common.
    """
    by_name = {run.name: run for run in runs}
    groups = []
    for name, members in group_names(by_name, pattern).items():
        curves = tuple(curve_over(by_name[member], x, metric) for member in members)
        band = mean_band(curves, ddof=1)
        if len(band.positions) == 0:
            raise UsageError(
                f"the curves of {', '.join(members)} have no range in common, so that group {name} has no mean: "
                "choose other runs or another --group"
            )
        groups.append(Group(name, tuple(members), curves, band))
    return Comparison(x, metric, tuple(groups))


def group_names(names: Iterable[str], pattern: re.Pattern[str] | None) -> dict[str, list[str]]:
    """Puts names into groups, in the order in which they come.

    Args:
        names: of runs, each once.
        pattern: names in which it finds the same text (that of its first parenthesis, if it has one) are one group, and
            a name in which it finds nothing stands alone. None for names that differ only in a trailing `_seed3`,
            `-seed3` or `-3`.

    Returns:
        Names by group; a name that is alone without a pattern names its group in full.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_SEED.sub("", name) if pattern is None else _found(pattern, name), []).append(name)
    if pattern is None:
        return {members[0] if len(members) == 1 else stem: members for stem, members in groups.items()}
    return groups


def curve_over(run: Run, x: XAxis, metric: Metric) -> Curve:
    """Returns a run's returns over an axis.

    Args:
        run: what it recorded.
        x: `total_steps` of all workers; `per_worker_steps` and `per_rank_steps`, the same divided by the number of
            workers or of ranks; `wall_time`, seconds since the command.
        metric: returns of training or of evaluations. An evaluation's time is that at which its policy had trained for
            its steps, between two records by a straight line.

    Raises:
        UsageError: the run has no such returns, or its workers or its times are not known.
    """
    curve = run.curve(_METRICS[metric])
    if len(curve) == 0:
        missing = "return of training episodes" if metric == "train" else "evaluation"
        instead = "let it train on" if metric == "train" else "choose --metric=train"
        raise UsageError(f"{run.name} has recorded no {missing}: {instead}")
    if x == "total_steps":
        return curve
    if x == "per_rank_steps":
        return Curve(curve.positions / run.num_ranks, curve.values)
    if x == "per_worker_steps":
        if run.num_workers is None:
            raise UsageError(
                f"the number of workers of {run.name} cannot be known, for its config.yaml does not say a number and "
                "metrics.jsonl has no curves of workers: choose --x=total_steps"
            )
        return Curve(curve.positions / run.num_workers, curve.values)
    elapsed = run.elapsed()
    if len(elapsed) == 0:
        raise UsageError(f"{run.name} has recorded no time/time_elapsed: choose --x=total_steps")
    seconds = np.interp(curve.positions, elapsed.positions, elapsed.values)
    # Before the first and after the last record times are equal: the last of such points stays.
    return make_curve(zip(seconds.tolist(), curve.values.tolist(), strict=True))


def summary_lines(comparison: Comparison) -> list[str]:
    """One sentence for each group: which runs it is of, how far, and where it ended."""
    unit = "s" if comparison.x == "wall_time" else "steps"
    lines = []
    for group in comparison.groups:
        band = group.band
        last = f"{band.mean[-1]:,.1f}" + ("" if band.std is None else f" +- {band.std[-1]:,.1f}")
        count = f"{len(group.runs)} run" + ("s" if len(group.runs) > 1 else "")
        longest = max(curve.positions[-1] for curve in group.curves)
        end = ", where its shortest run ends" if longest > 1.05 * band.positions[-1] else ""
        lines.append(f"{group.name} ({count}): return {last} at {band.positions[-1]:,.0f} {unit}{end}")
    return lines


def _found(pattern: re.Pattern[str], name: str) -> str:
    match = pattern.search(name)
    if match is None:
        return name
    text = match[1] if pattern.groups else match[0]
    return text or name
