"""The figures of `asyncrl plot` as numbers: one run (trial), several runs (comparison), and speed-up.

Trial: each worker or rank has a mean return over its last 100 episodes, and all count the same in the mean over them.
So that mean differs from the return in the progress line, which is over the last 100 episodes of all workers together:
there, workers with short episodes count more.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from asyncrl.analysis.curves import Array, Band, Curve, make_curve, mean_band, moving_average
from asyncrl.analysis.records import CORES, ELAPSED, EVAL_RETURN, TRAIN_RETURN, Run, Unit, differing_settings
from asyncrl.config.errors import UsageError
from asyncrl.observers.reports import EPISODE_WINDOW

XAxis = Literal["env_steps", "per_worker_steps", "per_rank_steps", "processor_time", "wall_time"]
TIMES: tuple[XAxis, ...] = ("wall_time", "processor_time")
"""Axes in seconds."""
Metric = Literal["train", "eval"]

_METRICS: dict[Metric, str] = {"train": TRAIN_RETURN, "eval": EVAL_RETURN}
_LARGEST_WINDOW = 100
# The date and time of a generated name, or a number. The 3 of lr1e-3 is neither.
_SUFFIX = re.compile(r"_\d{8}-\d{6}$|(?:[_-]seed[_-]?|_|(?<!\de)-)\d+$")


@dataclass(frozen=True)
class Trial:
    """The returns of one run.

    Attributes:
        run: name of the run.
        unit: what `members` are.
        members: indices of the workers or ranks; empty if `returns` is the run's own curve.
        returns: mean and standard deviation over the members that have a return at a position, over environment steps
            of all of them or of each (`x`).
        window: records in the moving average.
        average: [G] float64, moving average of the mean return.
    """

    run: str
    unit: Unit
    members: tuple[int, ...]
    returns: Band
    window: int
    average: Array
    x: XAxis = "env_steps"

    @property
    def num_averaged(self) -> str:
        """How many members the mean is over, in words: a resumed run may have other workers or ranks than before."""
        assert self.returns.counts is not None, "a trial without members has no mean over them"
        least, most = self.returns.counts.min(), self.returns.counts.max()
        count = f"{most}" if least == most else f"{least} to {most}"
        return f"{count} {self.unit}{'s' if most > 1 else ''}"

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers as plain data."""
        return {
            "run": self.run,
            "x": self.x,
            f"{self.unit}s": list(self.members),
            "env_steps": self.returns.positions.tolist(),
            "mean": self.returns.mean.tolist(),
            "std": None if self.returns.std is None else self.returns.std.tolist(),
            "window": self.window,
            "moving_average": self.average.tolist(),
        }


def make_trial(run: Run, window: int | None, x: XAxis = "env_steps") -> Trial:
    """Computes the trial of a run.

    Args:
        run: the run.
        x: steps of all workers or ranks, or of each, which are the frames of a session in SLM Lab's trial graphs.
        window: records in the moving average; None for a tenth of the records, at most 100.

    Raises:
        UsageError: the run has no returns, the curves of its workers or ranks have no steps in common, the window is
            larger than the number of records, or the run has no curves over this axis.
    """
    of_each: XAxis = "per_rank_steps" if run.unit == "rank" else "per_worker_steps"
    members, own = run.returns_by_unit(over_own_steps=x == of_each), run.curve(TRAIN_RETURN)
    if x not in ("env_steps", of_each) or (x == of_each and not members):
        axes = "--x=env_steps" + (f" or --x={of_each}" if members else "")
        raise UsageError(f"--x={x} is not possible for the trial of {run.name}: its curves give {axes}.")
    if not members and len(own) == 0:
        raise UsageError(f"Run {run.name} has recorded no return yet: wait until an episode has ended.")
    if members:
        lasting = run.lasting_units()
        within = [curve for member, curve in members.items() if member in lasting]
        returns = mean_band(list(members.values()), ddof=0, within=within or None)
    else:
        returns = Band(own.positions, own.values, None)
    count = len(returns.positions)
    if count == 0:
        whose = f"{run.name}'s {run.unit}s"
        raise UsageError(f"The curves of {whose} have no range of steps in common: wait until it has trained longer.")
    if window is None:
        window = min(_LARGEST_WINDOW, max(1, count // 10))
    elif window > count:
        raise UsageError(
            f"--window={window} is more than the {count} records of {run.name}: the result would be a mean over all "
            "records so far. Give a smaller one."
        )
    return Trial(run.name, run.unit, tuple(members), returns, window, moving_average(returns.mean, window), x)


def notes(run: Run, trial: Trial) -> list[str]:
    """Returns sentences on what the figure of a trial does not show."""
    if not trial.members:
        return []
    found = []
    count = run.num_workers if trial.unit == "worker" else run.num_ranks
    if count is not None and count > len(trial.members):
        found.append(f"{run.name} has curves of only {len(trial.members)} of its {count} {trial.unit}s.")
    counts = trial.returns.counts
    if counts is not None and counts.min() < counts.max():
        found.append(
            f"{run.name}: the mean is over {trial.num_averaged}, at each step over those that have a return there, as "
            f"the run was resumed with another number of {trial.unit}s."
        )
    own = run.curve(TRAIN_RETURN)
    if len(trial.members) > 1 and len(own) > 0:
        whose = "all workers" if trial.unit == "worker" else "rank 0"
        found.append(
            f"{run.name}: return {trial.returns.mean[-1]:,.1f} as the mean over {trial.unit}s, each over its last "
            f"{EPISODE_WINDOW} episodes; the progress line shows {own.values[-1]:,.1f}, the mean over the last "
            f"{EPISODE_WINDOW} episodes of {whose}."
        )
    return found


@dataclass(frozen=True)
class Group:
    """Runs that share a line in the figure: the curve of each, and the band where all of them have values."""

    name: str
    runs: tuple[str, ...]
    curves: tuple[Curve, ...]
    band: Band


@dataclass(frozen=True)
class Comparison:
    """Returns by `metric` of groups of runs in `env`, over `x` in environment steps or seconds."""

    env: str
    x: XAxis
    metric: Metric
    groups: tuple[Group, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers of all lines as plain data."""
        groups = [
            {
                "name": group.name,
                "runs": list(group.runs),
                "x": group.band.positions.tolist(),
                "mean": group.band.mean.tolist(),
                "std": None if group.band.std is None else group.band.std.tolist(),
            }
            for group in self.groups
        ]
        return {"env": self.env, "x": self.x, "metric": self.metric, "groups": groups}

    def summary(self) -> list[str]:
        """Returns one line for each group: its number of runs and its return at the end."""
        unit = "s" if self.x in TIMES else "steps"
        lines = []
        for group in self.groups:
            band = group.band
            last = f"{band.mean[-1]:,.1f}" + ("" if band.std is None else f" +- {band.std[-1]:,.1f}")
            count = f"{len(group.runs)} run" + ("s" if len(group.runs) > 1 else "")
            longest = max(curve.positions[-1] for curve in group.curves)
            end = " (end of its shortest run)" if longest > 1.05 * band.positions[-1] else ""
            lines.append(f"{group.name} ({count}): return {last} at {band.positions[-1]:,.0f} {unit}{end}")
        return lines


def compare(
    runs: Sequence[Run], x: XAxis, metric: Metric, pattern: re.Pattern[str] | None, smooth: int = 1
) -> Comparison:
    """Compares runs; see `curve_over` for `x` and `metric`, and `group_runs` for `pattern`.

    Each return is the mean of the last `smooth` records of its run.

    Raises:
        UsageError: a run lacks data for the axis or the metric, or a group's curves have no range in common.
    """
    groups = []
    for name, of_group in group_runs(runs, pattern).items():
        members = tuple(run.name for run in of_group)
        curves = tuple(smoothed(run.name, curve_over(run, x, metric), smooth) for run in of_group)
        band = mean_band(curves, ddof=1)
        if len(band.positions) == 0:
            raise UsageError(
                f"Group {name} has no mean: the curves of {', '.join(members)} have no range in common. "
                "Choose other runs or another --group."
            )
        groups.append(Group(name, members, curves, band))
    return Comparison(", ".join(environments(runs)), x, metric, tuple(groups))


def environments(runs: Iterable[Run]) -> list[str]:
    """Returns the environments of the runs, each once, in the order of the runs."""
    return list(dict.fromkeys(str(run.config["env"]) for run in runs if "env" in run.config))


def smoothed(name: str, curve: Curve, num_records: int) -> Curve:
    """Returns a curve of moving averages, which begins where the first one is complete.

    Raises:
        UsageError: the run of this name has fewer records.
    """
    if num_records > len(curve):
        raise UsageError(f"--smooth={num_records} is more than the {len(curve)} records of {name}: give a smaller one.")
    first = num_records - 1
    return Curve(curve.positions[first:], moving_average(curve.values, num_records)[first:])


def group_runs(runs: Iterable[Run], pattern: re.Pattern[str] | None) -> dict[str, list[Run]]:
    """Puts runs into groups that are averaged, in the order of the runs.

    With a pattern, runs whose names have the same first capture group (without one, the same match) are a group, and a
    run without a match is alone. Without a pattern, a group has the same settings, apart from seed, length and place,
    and names that differ only in a number or in date and time at the end. Its name is the common part of theirs, with
    the settings in which it differs from other groups of that name. A run without such a sibling keeps its name; it
    joins a group of that name if the settings are the same.
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
    by_name: dict[str, list[Run]] = {}
    for stem, of_stem in by_stem.items():  # the name of a lone run may be the stem of others
        by_name.setdefault(stem if len(of_stem) > 1 else of_stem[0].name, []).extend(of_stem)
    for name, of_name in by_name.items():
        differing = differing_settings(of_name)
        for run in of_name:
            values = ", ".join(f"{setting}={run.config.get(setting)}" for setting in differing)
            groups.setdefault(f"{name} ({values})" if values else name, []).append(run)
    return groups


def curve_over(run: Run, x: XAxis, metric: Metric) -> Curve:
    """Returns a run's returns over an axis.

    The time of an evaluation is the time at which its policy had trained for its steps, interpolated between records.
    Processor time is that of rollout, inference and learner processes of all ranks.

    Raises:
        UsageError: the run has no such returns, or its number of workers or its times are unknown.
    """
    curve = run.curve(_METRICS[metric])
    if len(curve) == 0:
        missing = "return of training episodes" if metric == "train" else "evaluation"
        instead = "wait until an episode has ended" if metric == "train" else "choose --metric=train"
        raise UsageError(f"Run {run.name} has recorded no {missing}: {instead}.")
    if x in TIMES:
        elapsed = run.elapsed() if x == "wall_time" else run.processor_time()
        if len(elapsed) == 0:
            recorded = ELAPSED if x == "wall_time" else CORES
            raise UsageError(f"Run {run.name} has recorded no {recorded}: choose --x=env_steps.")
        seconds = np.interp(curve.positions, elapsed.positions, elapsed.values)
        # All points before the first record have its time, and all after the last: the last such point is kept.
        return make_curve(zip(seconds.tolist(), curve.values.tolist(), strict=True))
    units: dict[XAxis, Unit] = {"per_worker_steps": "worker", "per_rank_steps": "rank"}
    divisor = run.count(units[x], "Choose --x=env_steps.") if x in units else 1
    return Curve(curve.positions / divisor, curve.values)


@dataclass(frozen=True)
class RunSpeedup:
    """The speed-up of one run over the runs with the fewest workers or ranks.

    Attributes:
        run: its name.
        count: its number of workers or ranks.
        total_env_steps: environment steps that it trained for.
        env_steps_per_s: environment steps per second from its first record to the common total.
        seconds: time that the common total takes at that speed.
        speedup: median seconds of the runs with the smallest count, divided by `seconds`.
        efficiency: `speedup` divided by the ratio of the counts; 1.0 is 100 %.
    """

    run: str
    count: int
    total_env_steps: float
    env_steps_per_s: float
    seconds: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Range:
    """Median, smallest and largest of at least one value."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Range:
        return Range(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class CountSpeedup:
    """The runs with one number of workers or ranks; `ideal` is that number divided by the smallest."""

    count: int
    num_runs: int
    ideal: float
    speedup: Range
    efficiency: Range


@dataclass(frozen=True)
class Speedup:
    """Runs with different numbers of workers or ranks, timed to `common_env_steps`, the smallest total of the runs."""

    unit: Unit
    common_env_steps: float
    base_count: int
    runs: tuple[RunSpeedup, ...]
    counts: tuple[CountSpeedup, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns all numbers as plain data."""
        return dataclasses.asdict(self)

    def table(self) -> str:
        """Returns lines of text, one for each number of workers or ranks."""
        base = f"{self.base_count} {self.unit}" + ("s" if self.base_count > 1 else "")
        lines = [
            f"time to {self.common_env_steps:,.0f} environment steps, start-up excluded, against {base}:",
            f"{f'{self.unit}s':>7}  {'runs':>4}  {'ideal':>6}  {'speed-up':<22}  efficiency",
        ]
        for each in self.counts:
            speedup, share = f"{each.speedup.median:.2f}", f"{each.efficiency.median:.1%}"
            if each.num_runs > 1:
                speedup += f" ({each.speedup.low:.2f} to {each.speedup.high:.2f})"
                share += f" ({each.efficiency.low:.1%} to {each.efficiency.high:.1%})"
            lines.append(f"{each.count:>7}  {each.num_runs:>4}  {each.ideal:>6.2f}  {speedup:<22}  {share}")
        return "\n".join(lines)


def measure_speedup(runs: Sequence[Run]) -> Speedup:
    """Computes speed-up and efficiency over ranks if their numbers differ, otherwise over workers.

    Runs of different lengths are compared by the time to the smallest total of environment steps, at their speed up to
    there and from the start.

    Raises:
        UsageError: the runs are not of one experiment, all have the same number of workers and ranks, this number is
            unknown, or a speed cannot be measured.
    """
    for name in ("env", "algo"):
        values = {str(run.config[name]): run.name for run in runs if name in run.config}
        if len(values) > 1:
            found = ", ".join(f"{run} has {value}" for value, run in values.items())
            raise UsageError(f"A speed-up needs runs of one experiment, but {name} differs: {found}.")
    unit = _unit_of(runs)
    count_of = {run.name: run.count(unit, "Leave this run out.") for run in runs}
    counts = sorted(set(count_of.values()))
    if len(counts) < 2:
        raise UsageError(
            f"A speed-up needs runs with at least two numbers of workers or ranks, but all have {counts[0]} {unit}s. "
            "Add a run with another number."
        )
    totals = {}
    for run in runs:
        elapsed = run.elapsed()
        if len(elapsed) == 0:
            raise UsageError(f"Run {run.name} has recorded no time/time_elapsed: leave this run out.")
        totals[run.name] = float(elapsed.positions[-1])
    common, base = min(totals.values()), counts[0]
    speeds = {run.name: speed_of(run, common) for run in runs}
    base_s = statistics.median(common / speed for name, speed in speeds.items() if count_of[name] == base)
    found_runs = []
    for name, count in sorted(count_of.items(), key=lambda item: item[1]):
        speedup = base_s / (common / speeds[name])
        share = speedup * base / count
        found_runs.append(RunSpeedup(name, count, totals[name], speeds[name], common / speeds[name], speedup, share))
    by_count = []
    for count in counts:
        of_count = [run for run in found_runs if run.count == count]
        speedups, shares = [run.speedup for run in of_count], [run.efficiency for run in of_count]
        by_count.append(CountSpeedup(count, len(of_count), count / base, Range.of(speedups), Range.of(shares)))
    return Speedup(unit, common, base, tuple(found_runs), tuple(by_count))


def unexpected_differences(runs: Sequence[Run]) -> list[str]:
    """Returns the settings in which runs differ, other than the measured count, seed, length and place."""
    measured = {"num_workers"} if _unit_of(runs) == "worker" else set()
    return [name for name in differing_settings(runs) if name not in measured]


def speed_of(run: Run, until: float) -> float:
    """Returns environment steps per second from a run's first trained steps on record to `until` steps.

    The time before the first record is start-up and first dataset, which more processes do not make faster.

    Raises:
        UsageError: the run has no two records before `until`.
    """
    elapsed = run.elapsed()
    trained = elapsed.positions > 0
    steps, seconds = elapsed.positions[trained], elapsed.values[trained]
    if len(steps) == 0 or steps[0] >= until:
        raise UsageError(
            f"The speed of {run.name} cannot be measured: it has no record before {until:,.0f} environment steps, the "
            "smallest total of the runs. Use longer runs or a smaller --report_every_s."
        )
    window_s = float(np.interp(until, steps, seconds)) - float(seconds[0])
    if window_s <= 0:
        raise UsageError(f"The speed of {run.name} cannot be measured: the times in its records do not increase.")
    return (until - float(steps[0])) / window_s


def _unit_of(runs: Iterable[Run]) -> Unit:
    return "rank" if len({run.num_ranks for run in runs}) > 1 else "worker"
