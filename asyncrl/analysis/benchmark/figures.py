"""What was measured of each task, as typed figures, and the file that keeps them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from asyncrl.analysis.benchmark.variants import Task
from asyncrl.analysis.benchmark.watch import Usage
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, Record, append_json_line, read_json_lines

Value = TypeVar("Value")

_SHARE_PREFIXES = ("perf/", "profile/", "replay/")
_LAG_FIGURES = ("lag/mean", "lag/p95", "lag/max")


class NothingMeasured(Exception):
    """A run ended without the records that a figure needs; the text says what to change."""


@dataclass(frozen=True)
class SimulationFigures:
    """Environment steps a second without a policy; `replayed` says whether a policy's episodes were played again."""

    env_steps_per_s: float
    replayed: bool


@dataclass(frozen=True)
class ThroughputFigures(Generic[Value]):
    """Speed and use of resources with learning rate 0, over a window after the warm-up: of a run, or over seeds.

    Attributes:
        window_s: seconds of the window, from one dataset's end to another's.
        window_env_steps: environment steps trained in it.
        env_steps_per_s: environment steps trained a second.
        sgd_steps_per_s: optimizer steps a second.
        learner_samples_per_s: samples that went through the learner a second, each as often as it was used.
        samples_per_env_step: how often a collected environment step was trained on; dropped ones never are.
        dropped_share: share of the collected steps that were too old to train on.
        cpu_s_per_million_steps: CPU seconds of all processes for a million environment steps.
        peak_pss_bytes, peak_rss_bytes: see `asyncrl.analysis.benchmark.watch.Usage`.
        startup_s: seconds from the command to the first environment step.
        lag: `lag/*` at first use by published name; means over the records, the largest for maxima.
        shares: `perf/<role>_busy`, `profile/<role>/<phase>` and `replay/<side>_blocked`, shares of time by published
            name.
        lag_records: mean, 95th percentile and maximum of the lag at first use, of every record in the window.
        share_of_simulation: `env_steps_per_s` divided by that of the pure simulation of the same round.
    """

    window_s: Value
    window_env_steps: Value
    env_steps_per_s: Value
    sgd_steps_per_s: Value
    learner_samples_per_s: Value
    samples_per_env_step: Value
    dropped_share: Value
    cpu_s_per_million_steps: Value
    peak_pss_bytes: Value | None
    peak_rss_bytes: Value
    startup_s: Value
    lag: dict[str, Value]
    shares: dict[str, Value]
    lag_records: list[list[float]]
    share_of_simulation: Value | None = None


@dataclass(frozen=True)
class LearningFigures:
    """One run with the real settings.

    Attributes:
        env_steps: environment steps trained.
        wall_s: seconds from the command to the end.
        final_return: mean return of the last 100 training episodes; None if none ended.
        evaluated_return: mean return of evaluation episodes of the final policy; None if none were asked for.
        curve: environment steps, seconds since the command, and mean return of the last 100 training episodes, of rank
            0's where there are several.
        env_steps_per_s, sgd_steps_per_s: environment and optimizer steps a second between the first and the last record
            of trained steps; None if there are no two with steps between them.
        other_curves: the same as `curve` for each rank but the first: steps of all ranks, episodes of its own.
    """

    env_steps: int
    wall_s: float
    final_return: float | None
    evaluated_return: float | None
    curve: list[list[float]]
    env_steps_per_s: float | None = None
    sgd_steps_per_s: float | None = None
    other_curves: list[list[list[float]]] = field(default_factory=list)


Figures = SimulationFigures | ThroughputFigures[float] | LearningFigures

_TYPES: dict[str, type[Figures]] = {
    "simulation": SimulationFigures,
    "throughput": ThroughputFigures,
    "learning": LearningFigures,
}


class ResultStore:
    """Figures by task, each appended to a file as soon as it is there, so that a stopped benchmark continues.

    A task is found again only with the same flags and conditions: what was measured otherwise is not mixed in.
    """

    def __init__(self, path: Path) -> None:
        """Reads what is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._figures: dict[Task, Figures] = {}
        self._code: dict[Task, str] = {}
        for entry in read_json_lines(path):
            task = entry["task"]
            key = Task(**{**task, "flags": tuple(task["flags"]), "conditions": tuple(task["conditions"])})
            self._figures[key], self._code[key] = _TYPES[key.kind](**entry["figures"]), entry["code"]

    def get(self, task: Task) -> Figures | None:
        """Returns what was measured for a task under its conditions."""
        return self._figures.get(task)

    def code_of(self, tasks: Iterable[Task]) -> list[str]:
        """Returns the versions of the code that results of these tasks were measured with."""
        return sorted({self._code[task] for task in tasks if task in self._code})

    def add(self, task: Task, figures: Figures, code: str) -> None:
        """Keeps a result, and what code gave it; it is on the disk when this returns."""
        self._figures[task], self._code[task] = figures, code
        entry = {"task": dataclasses.asdict(task), "code": code, "figures": dataclasses.asdict(figures)}
        append_json_line(self._path, entry)


def throughput_figures(
    records_of_ranks: Sequence[Sequence[Record]],
    startup_s: float,
    warm_up_s: float,
    num_epochs: int,
    usage: Usage,
    replay_batch_size: int | None = None,
) -> ThroughputFigures[float]:
    """Sums up the records after the warm-up; the run's last record, which holds its end, is left out.

    `time/fps` of a record counts from the last dataset of the record before to its own last dataset, so the records'
    windows follow one another without gap, and their sum neither begins nor ends inside a dataset.

    Args:
        records_of_ranks: all records of each rank; the first one's count the steps of all of them.
        startup_s: when the first environment step was made, in seconds since the command.
        warm_up_s: seconds after that which are left out.
        num_epochs: passes over each dataset, 0 for a run that only samples.
        usage: what the processes used.
        replay_batch_size: samples of an update from a replay, for which `num_epochs` has no meaning.

    Raises:
        NothingMeasured: no dataset was trained in the window.
    """
    begin_s = startup_s + warm_up_s
    # The first record of a window is where it begins.
    windows = [[each for each in records[:-1] if each[ELAPSED] >= begin_s] for records in records_of_ranks]
    if not any(record.get("time/fps") for record in windows[0][1:]):
        raise NothingMeasured(
            f"the run trained on nothing between {warm_up_s:g} s after its first step and its end: raise --measure_s"
        )
    first, last = windows[0][0], windows[0][-1]
    steps, seconds = 0, 0.0
    for previous, record in itertools.pairwise(windows[0]):
        if record.get("time/fps"):
            trained_steps = record[STEPS] - previous[STEPS]
            steps, seconds = steps + trained_steps, seconds + trained_steps / record["time/fps"]
    dropped = sum(_difference(window[0], window[-1], "perf/dropped_samples") for window in windows if window)
    updates = _difference(first, last, "train/n_updates")
    trained = num_epochs * steps if replay_batch_size is None else updates * replay_batch_size
    cpu_s = usage.cpu_between(first[ELAPSED], last[ELAPSED])
    window = [record for records in windows for record in records[1:]]
    shares = _means(window, _SHARE_PREFIXES)
    return ThroughputFigures(
        window_s=seconds,
        window_env_steps=steps,
        env_steps_per_s=steps / seconds,
        sgd_steps_per_s=updates / seconds,
        learner_samples_per_s=trained / seconds,
        samples_per_env_step=trained / (steps + dropped),
        dropped_share=dropped / (steps + dropped),
        cpu_s_per_million_steps=cpu_s / steps * 1e6,
        peak_pss_bytes=usage.peak_pss_bytes,
        peak_rss_bytes=usage.peak_rss_bytes,
        startup_s=startup_s,
        lag=_means(window, ("lag/",)),
        shares={
            name: share
            for name, share in shares.items()
            if name.startswith("profile/") or name.endswith(("_busy", "_blocked"))
        },
        lag_records=[
            [float(r[name]) for name in _LAG_FIGURES] for r in window if all(name in r for name in _LAG_FIGURES)
        ],
    )


def learning_figures(
    records_of_ranks: Sequence[Sequence[Record]], summary: Mapping[str, Any], evaluated_return: float | None
) -> LearningFigures:
    """Takes the curves of a run, one for each rank, and where it came to."""
    records = records_of_ranks[0]
    curve, *other_curves = [_curve(of_rank) for of_rank in records_of_ranks]
    return LearningFigures(
        env_steps=int(summary["env_steps"]),
        wall_s=float(summary["wall_s"]),
        final_return=summary["ep_rew_mean"],
        evaluated_return=evaluated_return,
        curve=curve,
        env_steps_per_s=_pace(records, STEPS),
        sgd_steps_per_s=_pace(records, "train/n_updates"),
        other_curves=other_curves,
    )


def _curve(records: Sequence[Record]) -> list[list[float]]:
    return [
        [float(record[STEPS]), float(record[ELAPSED]), float(record[TRAIN_RETURN])]
        for record in records
        if record.get(TRAIN_RETURN) is not None and record[STEPS] > 0
    ]


def _pace(records: Sequence[Record], name: str) -> float | None:
    """How much of a count was added a second from the first record of trained steps to the last."""
    trained = [record for record in records if record[STEPS] > 0]
    seconds = _difference(trained[0], trained[-1], ELAPSED) if trained else 0.0
    added = _difference(trained[0], trained[-1], name) if trained else 0.0
    return added / seconds if seconds > 0.0 and added > 0.0 else None


def _means(records: Sequence[Record], prefixes: tuple[str, ...]) -> dict[str, float]:
    """Means over the records by name; of maxima the largest."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith(prefixes) and value is not None:
                values.setdefault(name, []).append(float(value))
    return {n: max(found) if n.endswith("max") else sum(found) / len(found) for n, found in sorted(values.items())}


def _difference(first: Record, last: Record, name: str) -> float:
    return float(last.get(name) or 0) - float(first.get(name) or 0)
