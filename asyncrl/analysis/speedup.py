"""How much faster more workers or ranks are: time to the same number of environment steps, start-up left out."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.analysis.curves import Curve
from asyncrl.analysis.records import Run, Unit, differing_settings
from asyncrl.config.errors import UsageError

_SAME = ("env", "algo")


@dataclass(frozen=True)
class Pace:
    """A run with `count` rollout workers or ranks: seconds over environment steps of all of them."""

    run: str
    count: int
    elapsed: Curve


@dataclass(frozen=True)
class RunSpeedup:
    """One run against those with the fewest workers or ranks.

    Attributes:
        env_steps_per_s: steps a second from its first record to the common total.
        seconds: what the common total takes at that speed.
        speedup: median seconds of the runs with the smallest count, divided by these.
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
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Range:
        """Sums up at least one value."""
        return Range(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class CountSpeedup:
    """All runs with one number of workers or ranks together; `ideal` is that number, divided by the smallest."""

    count: int
    num_runs: int
    ideal: float
    speedup: Range
    efficiency: Range


@dataclass(frozen=True)
class Speedup:
    """Runs by their numbers of workers or ranks, timed to `common_env_steps`, the smallest total of the runs."""

    unit: Unit
    common_env_steps: float
    base_count: int
    runs: tuple[RunSpeedup, ...]
    counts: tuple[CountSpeedup, ...]

    def to_json(self) -> dict[str, Any]:
        """All numbers, efficiencies as fractions."""
        return dataclasses.asdict(self)

    def table(self) -> str:
        """Lines of text: one for each number of workers or ranks."""
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


def efficiency(speedup: float, count: int, base_count: int) -> float:
    """Returns the share of the ideal speed-up, which is the ratio of counts; 1.0 is 100 %."""
    return speedup * base_count / count


def unit_of(runs: Iterable[Run]) -> Unit:
    """What runs are compared by: their ranks where these differ, else their workers."""
    return "rank" if len({run.num_ranks for run in runs}) > 1 else "worker"


def read_paces(runs: Sequence[Run]) -> list[Pace]:
    """Takes from runs what their speed-up follows from, by the unit that `unit_of` names.

    Raises:
        UsageError: they are no runs of one experiment, or their workers are not known.
    """
    for name in _SAME:
        values = {str(run.config[name]): run.name for run in runs if name in run.config}
        if len(values) > 1:
            found = ", ".join(f"{run} has {value}" for value, run in values.items())
            raise UsageError(f"A speed-up needs runs of one experiment, but {name} differs: {found}.")
    unit = unit_of(runs)
    return [Pace(run.name, run.count(unit, "Leave this run out."), run.elapsed()) for run in runs]


def unexpected_differences(runs: Sequence[Run]) -> list[str]:
    """Names of settings, other than what runs are compared by, seed, length and place, in which they differ."""
    compared = {"num_workers"} if unit_of(runs) == "worker" else set()
    return [name for name in differing_settings(runs) if name not in compared]


def speed_of(pace: Pace, until: float) -> float:
    """Returns environment steps a second from a run's first trained steps on record to `until` steps.

    What came before the first record is start-up and first dataset, which more processes make no faster.

    Raises:
        UsageError: the run has no two records before that.
    """
    trained = pace.elapsed.positions > 0
    steps, seconds = pace.elapsed.positions[trained], pace.elapsed.values[trained]
    if len(steps) == 0 or steps[0] >= until:
        raise UsageError(
            f"The speed of {pace.run} cannot be measured: it has no record before {until:,.0f} environment steps, the "
            "smallest total of the runs. Use longer runs or a smaller --report_every_s."
        )
    window_s = float(np.interp(until, steps, seconds)) - float(seconds[0])
    if window_s <= 0:
        raise UsageError(f"The speed of {pace.run} cannot be measured: the times in its records do not increase.")
    return (until - float(steps[0])) / window_s


def measure_speedup(paces: Sequence[Pace], unit: Unit = "worker") -> Speedup:
    """Computes speed-up and efficiency of each run and each number of workers or ranks.

    Runs that trained for different numbers of steps are compared by the time that the smallest total took or, at their
    speed up to there, would have taken from the start.

    Raises:
        UsageError: all have the same number, or a speed cannot be measured.
    """
    counts = sorted({pace.count for pace in paces})
    if len(counts) < 2:
        raise UsageError(
            f"A speed-up needs runs with at least two numbers of workers or ranks, but all have {counts[0]} {unit}s. "
            "Add a run with another number."
        )
    for pace in paces:
        if len(pace.elapsed) == 0:
            raise UsageError(f"Run {pace.run} has recorded no time/time_elapsed: leave this run out.")
    common, base = min(float(pace.elapsed.positions[-1]) for pace in paces), counts[0]
    speeds = {pace.run: speed_of(pace, common) for pace in paces}
    base_s = statistics.median(common / speeds[pace.run] for pace in paces if pace.count == base)
    runs = []
    for pace in sorted(paces, key=lambda pace: pace.count):
        seconds, total = common / speeds[pace.run], float(pace.elapsed.positions[-1])
        share = efficiency(base_s / seconds, pace.count, base)
        runs.append(RunSpeedup(pace.run, pace.count, total, speeds[pace.run], seconds, base_s / seconds, share))
    by_count = []
    for count in counts:
        of_count = [run for run in runs if run.count == count]
        speedups, shares = [run.speedup for run in of_count], [run.efficiency for run in of_count]
        by_count.append(CountSpeedup(count, len(of_count), count / base, Range.of(speedups), Range.of(shares)))
    return Speedup(unit, common, base, tuple(runs), tuple(by_count))
