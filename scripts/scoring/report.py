"""The report as Markdown and JSON, and its figures, which are drawn as those of `asyncrl plot compare`."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.analysis.curves import Curve, make_curve, mean_band
from asyncrl.analysis.drawing import draw_comparison
from asyncrl.analysis.figures import Comparison, Group, Metric, XAxis
from asyncrl.analysis.tables import UNKNOWN, rounded, section
from scoring.analysis import (
    TARGET_SHARE,
    Interval,
    Target,
    Time,
    best_ratio,
    evaluated_time,
    interquartile_interval,
    median_score,
    target,
    training_time,
)
from scoring.records import END, Record, step_mark, time_mark
from scoring.systems import System
from scoring.tasks import STEP_MARKS, TIME_MARKS_S, Task

OWN = "asyncrl"
"""The system that is compared with peers: asyncrl as shipped."""

_AXES: dict[XAxis, int] = {"wall_time": 0, "env_steps": 1}
_MARKS = (*(time_mark(seconds) for seconds in TIME_MARKS_S), *(step_mark(share) for share in STEP_MARKS[:-1]), END)


@dataclass(frozen=True)
class Results:
    """Everything in a report.

    Attributes:
        tasks, systems: in the order of the report.
        records: results by (task, system), in the order of the seeds.
        seeds: number of seeds that were requested.
        episodes: episodes of an evaluation.
        limit_s: seconds of training after which a run ends before its steps are done.
        provenance: versions and machine of the report's command, with `date`.
        plots: paths of the figures, relative to the report.
        without_plots: why there are no figures.
    """

    tasks: Sequence[Task]
    systems: Sequence[System]
    records: dict[tuple[str, str], Sequence[Record]]
    seeds: int
    episodes: int
    limit_s: float
    provenance: dict[str, Any]
    plots: Sequence[str] = ()
    without_plots: str | None = None

    def of(self, task: Task, system: System) -> Sequence[Record]:
        return self.records.get((task.env, system.name), ())

    def of_task(self, task: Task) -> dict[str, Sequence[Record]]:
        """Returns the results on a task by system."""
        return {system.name: self.of(task, system) for system in self.systems if self.of(task, system)}

    @property
    def measured(self) -> list[tuple[Task, System, Sequence[Record]]]:
        """Every task and system with results."""
        pairs = itertools.product(self.tasks, self.systems)
        return [(task, system, self.of(task, system)) for task, system in pairs if self.of(task, system)]

    @property
    def peers(self) -> list[str]:
        return [system.name for system in self.systems if system.is_peer]

    @property
    def common_tasks(self) -> list[Task]:
        """The tasks on which all systems have results."""
        return [task for task in self.tasks if all(self.of(task, system) for system in self.systems)]

    @property
    def targets(self) -> list[Target]:
        found = (target(task, self.of_task(task), self.peers) for task in self.tasks)
        return [item for item in found if item is not None]

    def interval(self, system: System) -> Interval | None:
        """Returns a system's interquartile mean over the common tasks; None without such a task."""
        scores = [[task.normalized(record.score) for record in self.of(task, system)] for task in self.common_tasks]
        return interquartile_interval(scores) if scores else None


def to_markdown(results: Results) -> str:
    sections = [
        _heading(results),
        _systems(results),
        _final_scores(results, "Final scores", lambda record: record.score),
        _final_scores(results, "Final scores with deterministic actions", lambda record: record.deterministic_score),
        _aggregate(results),
        _targets(results),
        _times(results, "training return", training_time),
        _times(results, "evaluated snapshots", evaluated_time),
        _marks(results),
        _speed(results),
        _plots(results),
        _missing(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def to_json(results: Results) -> dict[str, Any]:
    """Returns the numbers in the tables; the runs themselves are in the results file."""
    return {
        "provenance": results.provenance,
        "tasks": [dataclasses.asdict(task) for task in results.tasks],
        "summaries": [_summary(*measured) for measured in results.measured],
        "interquartile_means": {
            "tasks": [task.env for task in results.common_tasks],
            "systems": {
                system.name: None if (found := results.interval(system)) is None else dataclasses.asdict(found)
                for system in results.systems
            },
        },
        "targets": [
            {
                **dataclasses.asdict(item),
                "ratio_by_training": best_ratio(item.by_training, OWN, results.peers),
                "ratio_by_evaluation": best_ratio(item.by_evaluation, OWN, results.peers),
            }
            for item in results.targets
        ],
    }


def _summary(task: Task, system: System, records: Sequence[Record]) -> dict[str, Any]:
    return {
        "task": task.env,
        "system": system.name,
        "env": records[0].env,
        "scores": {str(record.seed): record.score for record in records},
        "median": median_score(records),
        "worst": min(record.score for record in records),
        "deterministic_scores": {str(record.seed): record.deterministic_score for record in records},
        "startup_s": [record.startup_s for record in records],
        "seconds": [record.seconds for record in records],
        "env_steps": [record.env_steps for record in records],
        "by_training": {f"{level:g}": dataclasses.asdict(training_time(records, level)) for level in task.thresholds},
        "by_evaluation": {
            f"{level:g}": dataclasses.asdict(evaluated_time(records, level)) for level in task.thresholds
        },
        "snapshots": [[dataclasses.asdict(snapshot) for snapshot in record.snapshots] for record in records],
    }


def _heading(results: Results) -> str:
    provenance = results.provenance
    machine, packages = provenance["machine"], provenance["packages"]
    commit = provenance["git_commit"] or "unknown"
    is_dirty = commit.endswith("-dirty")
    seeds = f"{results.seeds} seeds" if results.seeds > 1 else "1 seed"
    text = [
        "# Time to a score",
        f"{provenance['date']}, commit {commit.removesuffix('-dirty')}"
        + (" **and changes that are not committed**" if is_dirty else "")
        + f". {machine['cpu']}, {machine['usable_cores']} usable cores of {machine['cores']}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB; GPUs: {', '.join(machine['gpus']) or 'none'}; "
        f"{machine['platform']}; Python {provenance['python']}, "
        + ", ".join(f"{name} {version}" for name, version in packages.items())
        + ".",
        f"`python {' '.join(provenance['command'])}`",
        f"{seeds}. A score is the mean return of {results.episodes} episodes of a fixed policy with sampled actions, "
        "where nothing else is said, and frozen statistics, played after training had ended. The training return is "
        "the mean of the last 100 training episodes; early in a run it is of fewer, and short episodes end first. "
        "Seconds count from the command, start-up included, unless something else is said. Times are lower medians "
        f"over seeds, with `{UNKNOWN}` where fewer than half of them reached the return; in brackets how many did, "
        f"where not all. A run ends after {results.limit_s:g} s of training if its steps are not done by then.",
    ]
    others = {record.environment["git_commit"] for records in results.records.values() for record in records}
    if len(others) > 1:
        text.append(f"The peers' results were partly measured beside other commits: {', '.join(map(str, others))}.")
    return "\n\n".join(text)


def _systems(results: Results) -> str:
    rows = []
    for system in results.systems:
        records = [record for task in results.tasks for record in results.of(task, system)]
        renamed = sorted({record.env for record in records if record.env != record.task})
        versions = sorted({record.versions for record in records})
        rows.append([system.label, system.setting, ", ".join(renamed) or "the same", "; ".join(versions) or UNKNOWN])
    return section("Systems", "", ["system", "setting", "environments in other versions", "packages"], rows)


def _final_scores(results: Results, title: str, score_of: Callable[[Record], float | None]) -> str:
    def cell(records: Sequence[Record]) -> str:
        scores = [score for record in records if (score := score_of(record)) is not None]
        return f"{rounded(statistics.median(scores))} ({', '.join(map(rounded, scores))})" if scores else UNKNOWN

    rows = [
        [task.env, f"{task.env_steps:,}", *(cell(results.of(task, system)) for system in results.systems)]
        for task in results.tasks
    ]
    note = "Median of the final scores, in brackets each seed."
    return section(title, note, ["task", "steps", *_labels(results)], rows)


def _aggregate(results: Results) -> str:
    if not results.common_tasks:
        return "## Over all tasks\n\nOn no task do all systems have results."
    rows = []
    for system in results.systems:
        found = results.interval(system)
        rows.append(
            [system.label, UNKNOWN if found is None else f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"]
        )
    bounds = ", ".join(f"{task.env} {task.low:g} and {task.high:g}" for task in results.common_tasks)
    note = (
        "Interquartile mean of the normalized final scores over tasks and seeds, with its 95 % stratified bootstrap "
        "interval (Agarwal et al. 2021). Only tasks on which all systems have results count. Normalized scores are 0 "
        f"and 1 at: {bounds}."
    )
    return section("Over all tasks", note, ["system", "interquartile mean"], rows)


def _targets(results: Results) -> str:
    labels = {system.name: system.label for system in results.systems}
    rows = []
    for item in results.targets:
        for way, times in (("training return", item.by_training), ("evaluated", item.by_evaluation)):
            cells = [_time(times.get(system.name)) for system in results.systems]
            ratio = best_ratio(times, OWN, results.peers)
            best = f"{labels[item.peer]}: {rounded(item.peer_score)}"
            rows.append([item.task, best, rounded(item.value), way, *cells, _ratio(ratio)])
    note = (
        f"The best peer's median score after {max(TIME_MARKS_S)} s of training, or at the end of a shorter run, and "
        f"the time to {TARGET_SHARE:.0%} of the way there from random actions. The last column is the quickest peer's "
        "time divided by that of asyncrl as shipped."
    )
    header = ["task", "best peer", "return", "by", *_labels(results), "quickest peer / asyncrl"]
    return section("Time to nearly the best peer's score", note, header, rows)


def _times(results: Results, way: str, time_to: Callable[[Sequence[Record], float], Time]) -> str:
    rows = []
    for task in results.tasks:
        for threshold in task.thresholds:
            times = {name: time_to(records, threshold) for name, records in results.of_task(task).items()}
            cells = [_time(times.get(system.name)) for system in results.systems]
            rows.append([task.env, f"{threshold:g}", *cells, _ratio(best_ratio(times, OWN, results.peers))])
    header = ["task", "return", *_labels(results), "quickest peer / asyncrl"]
    return section(f"Time to a return, by {way}", "", header, rows)


def _marks(results: Results) -> str:
    rows = []
    for task, system, records in results.measured:
        cells = []
        for mark in _MARKS:
            scores = [snapshot.mean_return for record in records if (snapshot := record.at_mark(mark)) is not None]
            has_half = scores and 2 * len(scores) >= len(records)
            cells.append(rounded(statistics.median_low(scores)) if has_half else UNKNOWN)
        rows.append([task.env, system.label, *cells])
    note = (
        "Median scores of the first policy that was saved at or after each mark. Here seconds count from the first "
        f"environment step, and percentages are of the task's steps; `{UNKNOWN}` where fewer than half of the seeds "
        "trained so long."
    )
    return section("Scores on the way", note, ["task", "system", *_MARKS], rows)


def _speed(results: Results) -> str:
    rows = [
        [
            task.env,
            system.label,
            f"{statistics.median_low(record.env_steps for record in records):,.0f}",
            f"{statistics.median_low(record.seconds for record in records):.1f}",
            f"{statistics.median_low(record.startup_s for record in records):.1f}",
            f"{statistics.median_low(record.steps_per_s for record in records):,.0f}",
        ]
        for task, system, records in results.measured
    ]
    header = ["task", "system", "steps trained", "seconds", "of them start-up", "steps/s after it"]
    return section("Speed", "Medians over seeds.", header, rows)


def _plots(results: Results) -> str:
    if results.without_plots:
        return f"## Curves\n\n{results.without_plots}"
    lines = [f"![{path}]({path})" for path in results.plots]
    return "## Curves\n\n" + "\n".join(lines) if lines else ""


def _missing(results: Results) -> str:
    lines = []
    for task in results.tasks:
        for system in results.systems:
            count = len(results.of(task, system))
            if system.env_of(task) is None:
                lines.append(f"* {task.env}, {system.label}: left out, because its settings are not for this task.")
            elif count < results.seeds:
                lines.append(f"* {task.env}, {system.label}: {count} of {results.seeds} seeds have a result.")
    return "## Missing\n\n" + "\n".join(lines) if lines else ""


def _labels(results: Results) -> list[str]:
    return [system.label for system in results.systems]


def _time(time: Time | None) -> str:
    if time is None:
        return UNKNOWN
    reached = "" if time.num_reached == time.num_seeds else f" ({time.num_reached} of {time.num_seeds})"
    if time.seconds is None or time.env_steps is None:
        return f"{UNKNOWN}{reached}"
    return f"{time.seconds:.1f} s, {time.env_steps / 1000:,.0f}k{reached}"


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f} ×"


def draw(task: Task, by_system: dict[str, Sequence[Record]], systems: Sequence[System], folder: Path) -> Iterator[Path]:
    """Draws training returns and evaluated snapshots of a task over both axes, and yields the files."""
    metrics: tuple[Metric, ...] = ("train", "eval")
    for metric in metrics:
        for x, position in _AXES.items():
            groups = [
                group
                for system in systems
                if (group := _group(system.label, by_system.get(system.name, ()), metric, position)) is not None
            ]
            if groups:
                path = folder / f"{task.env.replace('/', '_')}_{metric}_{x}.png"
                draw_comparison(Comparison(task.env, x, metric, tuple(groups)), path)
                yield path


def _group(label: str, records: Sequence[Record], metric: Metric, position: int) -> Group | None:
    """Returns the seeds of one system; None without a point."""
    seeds, curves = [], []
    for record in records:
        curve = _curve(record, metric, position)
        if len(curve):
            seeds.append(f"seed {record.seed}")
            curves.append(curve)
    return Group(label, tuple(seeds), tuple(curves), mean_band(curves, ddof=1)) if curves else None


def _curve(record: Record, metric: Metric, position: int) -> Curve:
    points = record.curve if metric == "train" else record.evaluated_curve
    return make_curve((point[position], point[2]) for point in points)
