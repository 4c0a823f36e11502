"""The figures of a benchmark: those of each task, kept in results.jsonl, and their statistics over seeds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from asyncrl.analysis.benchmark.variants import Task, TaskKind, Unit, Variant, layouts_of
from asyncrl.analysis.benchmark.watch import TaskFailed, Usage
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, Record, append_json_line, read_json_lines
from asyncrl.analysis.statistics import Spread, first_reached, spread, uniform_lag

FORMAT_VERSION = 1

Value = TypeVar("Value")

_SHARE_PREFIXES = ("perf/", "profile/", "replay/")
_LAG_FIGURES = ("lag/mean", "lag/p95", "lag/max")
_STEPS, _SECONDS = 0, 1  # columns of a curve; the return is the third


@dataclass(frozen=True)
class SimulationFigures:
    """Environment steps per second without a policy; `replayed` if the actions are those of recorded episodes."""

    env_steps_per_s: float
    replayed: bool


@dataclass(frozen=True)
class ThroughputFigures(Generic[Value]):
    """Speed and use of resources with learning rate 0 in a window after the warm-up, of one run or over seeds.

    Attributes:
        window_s: seconds of the window, from the end of one dataset to that of another.
        window_env_steps: environment steps trained on in the window.
        env_steps_per_s: environment steps trained on per second.
        sgd_steps_per_s: optimizer steps per second.
        learner_samples_per_s: samples per second in the learner, counted in every pass.
        samples_per_env_step: how often a collected environment step is trained on, on average.
        dropped_share: share of the collected steps that were dropped.
        cpu_s_per_million_steps: CPU seconds of all processes for a million environment steps.
        peak_pss_bytes, peak_rss_bytes: see `asyncrl.analysis.benchmark.watch.Usage`.
        startup_s: seconds from the command to the first environment step.
        lag: `lag/*` by published name: means over the records; of maxima the largest.
        shares: shares of time by published name: `perf/<role>_busy`, `profile/<role>/<phase>`, `replay/<side>_blocked`.
        lag_records: mean, 95th percentile and maximum of the lag, of every record in the window.
        share_of_simulation: `env_steps_per_s` divided by that of the pure simulation in the same round.
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
        env_steps: environment steps trained on.
        wall_s: seconds from the command to the end.
        final_return: mean return of the last 100 training episodes; None if none ended.
        evaluated_return: mean return of evaluation episodes of the final policy; None without evaluation.
        curve: rank 0's environment steps, seconds since the command, and mean return of the last 100 training episodes.
        env_steps_per_s, sgd_steps_per_s: environment and optimizer steps per second between the first and the last
            record of trained steps; None if there were no steps between them.
        other_curves: the same as `curve` for each other rank: steps of all ranks, episodes of its own.
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
AnyFigures = TypeVar("AnyFigures", SimulationFigures, ThroughputFigures[float], LearningFigures)

_TYPES: dict[str, type[Figures]] = {
    "simulation": SimulationFigures,
    "throughput": ThroughputFigures,
    "learning": LearningFigures,
}


class ResultStore:
    """Figures by task. Each is appended to a file at once, so that a stopped benchmark can continue.

    A saved result counts only for a task with the same flags and conditions, which include the settings of files.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._figures: dict[Task, Figures] = {}
        self._code: dict[Task, str] = {}
        for entry in read_json_lines(path):
            task = entry["task"]
            key = Task(**{**task, "flags": tuple(task["flags"]), "conditions": tuple(task["conditions"])})
            self._figures[key], self._code[key] = _TYPES[key.kind](**entry["figures"]), entry["code"]

    def get(self, task: Task) -> Figures | None:
        return self._figures.get(task)

    def code_of(self, tasks: Iterable[Task]) -> list[str]:
        """Returns the versions of asyncrl with which the results of these tasks were measured."""
        return sorted({self._code[task] for task in tasks if task in self._code})

    def add(self, task: Task, figures: Figures, code: str) -> None:
        """Saves a result and the version of asyncrl that gave it."""
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
    """Computes the figures of the records after the warm-up, without the run's last record, which includes its end.

    `time/fps` of a record counts from the last dataset of the previous record to its own last dataset. So the windows
    of the records have no gaps, and their sum neither begins nor ends inside a dataset.

    Args:
        records_of_ranks: all records of each rank; those of the first rank count the steps of all.
        startup_s: time of the first environment step, in seconds since the command.
        warm_up_s: seconds after that time that are left out.
        num_epochs: passes over each dataset; 0 for a run that only samples.
        usage: CPU time and memory of the processes.
        replay_batch_size: samples of an update from a replay; `num_epochs` is not used then.

    Raises:
        TaskFailed: no dataset was trained in the window.
    """
    begin_s = startup_s + warm_up_s
    # A window begins at its first record.
    windows = [[each for each in _timed(records)[:-1] if each[ELAPSED] >= begin_s] for records in records_of_ranks]
    if not any(record.get("time/fps") for record in windows[0][1:]):
        raise TaskFailed(
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
    """Returns the figures of a run with the real settings, from the records of each rank and the run's summary."""
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
    """Returns the increase of a counter per second, from the first record of trained steps to the last record."""
    trained = [record for record in _timed(records) if record[STEPS] > 0]
    seconds = _difference(trained[0], trained[-1], ELAPSED) if trained else 0.0
    added = _difference(trained[0], trained[-1], name) if trained else 0.0
    return added / seconds if seconds > 0.0 and added > 0.0 else None


def _timed(records: Sequence[Record]) -> list[Record]:
    """The records without those of evaluations, which have no time."""
    return [record for record in records if record.get(ELAPSED) is not None]


def _means(records: Sequence[Record], prefixes: tuple[str, ...]) -> dict[str, float]:
    """Returns means over the records by name; of maxima the largest."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith(prefixes) and value is not None:
                values.setdefault(name, []).append(float(value))
    return {n: max(found) if n.endswith("max") else sum(found) / len(found) for n, found in sorted(values.items())}


def _difference(first: Record, last: Record, name: str) -> float:
    return float(last.get(name) or 0) - float(first.get(name) or 0)


@dataclass(frozen=True)
class About:
    """Conditions of the benchmark.

    Attributes:
        policy: checkpoint whose policy was run and replayed; None for a new policy and random actions.
        thresholds: returns whose time and steps are reported.
        code: commits or versions of asyncrl that gave the results.
        provenance: versions, machine, command.
    """

    env: str
    policy: str | None
    thresholds: tuple[float, ...]
    warm_up_s: float
    measure_s: float
    updates_per_dataset: int
    code: tuple[str, ...]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Reached:
    """Environment steps and seconds until a return was first reached; infinite for seeds that never reached it."""

    threshold: float
    env_steps: Spread
    seconds: Spread


@dataclass(frozen=True)
class Learning:
    """`LearningFigures` of a variant over seeds; curves by seed."""

    env_steps: Spread
    wall_s: Spread
    final_return: Spread | None
    evaluated_return: Spread | None
    reached: tuple[Reached, ...]
    curves: dict[int, list[list[float]]]
    other_curves: dict[int, list[list[list[float]]]]


@dataclass(frozen=True)
class VariantResult:
    """The figures of one variant; None for what was not measured."""

    variant: Variant
    throughput: ThroughputFigures[Spread] | None
    learning: Learning | None


@dataclass(frozen=True)
class VariantSpeedup:
    """A variant relative to the otherwise equal variant with the fewest workers or ranks, seed by seed.

    Attributes:
        ideal: its number of workers or ranks, divided by the fewest.
        kind: the runs that were compared.
        speedup: environment steps per second, divided by those with the fewest.
        efficiency: `speedup` divided by `ideal`.
    """

    unit: Unit
    variant: Variant
    ideal: float
    kind: TaskKind
    env_steps_per_s: Spread
    sgd_steps_per_s: Spread
    speedup: Spread
    efficiency: Spread


@dataclass(frozen=True)
class ModeComparison:
    """How long async needs to reach a return, as a share of sync with the same inference, layout and seed.

    Attributes:
        variant: the async variant.
        env_steps, seconds: async's steps and seconds divided by sync's, of the seeds with which at least one of the two
            reached the return; infinite where async never did, 0 where sync never did. None if no seed did.
        num_neither: seeds with which neither reached it.
    """

    variant: Variant
    threshold: float
    env_steps: Spread | None
    seconds: Spread | None
    num_neither: int


@dataclass(frozen=True)
class Results:
    """All figures of a benchmark.

    Attributes:
        simulation: environment steps per second of pure simulation, by layout.
        speedups: of variants that differ only in their workers or only in their ranks.
        mode_comparisons: of pairs of variants that differ only in their mode, async and sync.
        missing: reasons of measurements without a result.
        lag_within_dataset: see `uniform_lag`.
    """

    about: About
    simulation: dict[str, Spread]
    variants: tuple[VariantResult, ...]
    speedups: tuple[VariantSpeedup, ...]
    mode_comparisons: tuple[ModeComparison, ...]
    missing: dict[str, str]
    lag_within_dataset: tuple[float, float, int]

    def throughput(self) -> list[tuple[Variant, ThroughputFigures[Spread]]]:
        return [(item.variant, item.throughput) for item in self.variants if item.throughput is not None]

    def learning(self) -> list[tuple[Variant, Learning]]:
        return [(item.variant, item.learning) for item in self.variants if item.learning is not None]

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; infinite and unknown numbers are None."""
        about = {"format_version": FORMAT_VERSION, "unit_of_steps": "environment steps, never frames"}
        return {**about, **_as_data(self)}


def summarize(
    about: About, variants: Sequence[Variant], measured: Mapping[Task, Figures], missing: Mapping[str, str]
) -> Results:
    """Computes the statistics of all tasks with a result; `missing` has the reasons of the others.

    Without thresholds in `about` those of `common_thresholds` are taken.
    """
    learning_runs = {variant: _by_seed(measured, "learning", variant.name, LearningFigures) for variant in variants}
    if not about.thresholds:
        curves = [run.curve for by_seed in learning_runs.values() for run in by_seed.values()]
        about = dataclasses.replace(about, thresholds=common_thresholds(curves))
    simulation = {
        str(layout): _by_seed(measured, "simulation", str(layout), SimulationFigures) for layout in layouts_of(variants)
    }
    results = []
    for variant in variants:
        throughput = _by_seed(measured, "throughput", variant.name, ThroughputFigures)
        learning = learning_runs[variant]
        results.append(
            VariantResult(
                variant,
                _throughput(throughput, simulation[str(variant.simulated)]) if throughput else None,
                _learning(learning, about.thresholds) if learning else None,
            )
        )
    return Results(
        about=about,
        simulation={
            name: spread([found.env_steps_per_s for found in by_seed.values()])
            for name, by_seed in simulation.items()
            if by_seed
        },
        variants=tuple(results),
        speedups=tuple(found for unit in get_args(Unit) for found in _speedups(variants, measured, unit)),
        mode_comparisons=tuple(_mode_comparisons(learning_runs, about.thresholds)),
        missing=dict(missing),
        lag_within_dataset=uniform_lag(about.updates_per_dataset),
    )


def _by_seed(
    measured: Mapping[Task, Figures], kind: str, name: str, figures_type: type[AnyFigures]
) -> dict[int, AnyFigures]:
    return {
        task.seed: figures
        for task, figures in measured.items()
        if task.kind == kind and task.name == name and isinstance(figures, figures_type)
    }


def _throughput(
    by_seed: Mapping[int, ThroughputFigures[float]], simulation: Mapping[int, SimulationFigures]
) -> ThroughputFigures[Spread]:
    runs = []
    for seed, run in by_seed.items():
        share = run.env_steps_per_s / simulation[seed].env_steps_per_s if seed in simulation else None
        runs.append(dataclasses.replace(run, share_of_simulation=share))
    names = [each.name for each in dataclasses.fields(ThroughputFigures)]
    return ThroughputFigures(**{name: _over_seeds([getattr(run, name) for run in runs]) for name in names})


def _over_seeds(values: Sequence[Any]) -> Any:
    """Joins one figure of all runs: numbers to a spread, dicts by their common names, lists to one list."""
    if isinstance(values[0], dict):
        names = [name for name in values[0] if all(name in of_run for of_run in values)]
        return {name: spread([of_run[name] for of_run in values]) for name in names}
    if isinstance(values[0], list):
        return [item for of_run in values for item in of_run]
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def _learning(by_seed: Mapping[int, LearningFigures], thresholds: Iterable[float]) -> Learning:
    runs = list(by_seed.values())

    def reached(threshold: float, column: int) -> Spread:
        return spread([_first_reached(run, threshold, column) for run in runs])

    return Learning(
        env_steps=spread([run.env_steps for run in runs]),
        wall_s=spread([run.wall_s for run in runs]),
        final_return=_over_seeds([run.final_return for run in runs]),
        evaluated_return=_over_seeds([run.evaluated_return for run in runs]),
        reached=tuple(Reached(each, reached(each, _STEPS), reached(each, _SECONDS)) for each in thresholds),
        curves={seed: run.curve for seed, run in by_seed.items()},
        other_curves={seed: run.other_curves for seed, run in by_seed.items()},
    )


def _first_reached(run: LearningFigures, threshold: float, column: int) -> float:
    return first_reached([(point[column], point[2]) for point in run.curve], threshold)


def common_thresholds(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """Returns thresholds that every run reached: a half and nine tenths of the way to the highest of them.

    The way begins at the lowest first return of all runs. There are none if a run has no return or none improves on it.
    """
    returns = [[point[2] for point in curve] for curve in curves]
    if not returns or not all(returns):
        return ()
    first, best = min(of_run[0] for of_run in returns), min(max(of_run) for of_run in returns)
    return tuple(first + share * (best - first) for share in (0.5, 0.9)) if best > first else ()


def _mode_comparisons(
    runs: Mapping[Variant, Mapping[int, LearningFigures]], thresholds: Iterable[float]
) -> Iterator[ModeComparison]:
    for variant, threshold in itertools.product(runs, thresholds):
        sync = runs.get(dataclasses.replace(variant, mode="sync"), {})
        pairs = [(run, sync[seed]) for seed, run in runs[variant].items() if seed in sync]
        if variant.mode == "async" and pairs:
            steps, seconds = (_ratios(pairs, threshold, column) for column in (_STEPS, _SECONDS))
            yield ModeComparison(
                variant=variant,
                threshold=threshold,
                env_steps=spread(steps) if steps else None,
                seconds=spread(seconds) if seconds else None,
                num_neither=len(pairs) - len(steps),
            )


def _ratios(pairs: Iterable[tuple[LearningFigures, LearningFigures]], threshold: float, column: int) -> list[float]:
    reached = [[_first_reached(run, threshold, column) for run in pair] for pair in pairs]
    return [own / other for own, other in reached if not math.isinf(min(own, other))]


def _speedups(variants: Sequence[Variant], measured: Mapping[Task, Figures], unit: Unit) -> Iterator[VariantSpeedup]:
    # Environment and optimizer steps per second, by kind of run and variant, then by seed.
    paces: dict[tuple[TaskKind, Variant], dict[int, tuple[float, float]]] = {}
    kinds: tuple[TaskKind, ...] = ("throughput", "learning")
    for (kind, variant), (task, found) in itertools.product(itertools.product(kinds, variants), measured.items()):
        if (task.kind, task.name) != (kind, variant.name) or isinstance(found, SimulationFigures):
            continue
        if found.env_steps_per_s is not None and found.sgd_steps_per_s is not None:
            paces.setdefault((kind, variant), {})[task.seed] = found.env_steps_per_s, found.sgd_steps_per_s
    for (kind, variant), own in paces.items():
        alike = [other for other in paces if other[0] == kind and other[1].without(unit) == variant.without(unit)]
        base = min(alike, key=lambda other: other[1].count(unit))
        ratios = [pace[0] / paces[base][seed][0] for seed, pace in own.items() if seed in paces[base]]
        if len(alike) == 1 or not ratios:
            continue
        ideal = variant.count(unit) / base[1].count(unit)
        yield VariantSpeedup(
            unit=unit,
            variant=variant,
            ideal=ideal,
            kind=kind,
            env_steps_per_s=spread([steps for steps, _ in own.values()]),
            sgd_steps_per_s=spread([updates for _, updates in own.values()]),
            speedup=spread(ratios),
            efficiency=spread([ratio / ideal for ratio in ratios]),
        )


def _as_data(value: Any) -> Any:
    if isinstance(value, Spread):
        interval = None if value.low is None else [_as_data(value.low), _as_data(value.high)]
        values = [_as_data(one) for one in value.values]
        return {"median": _as_data(value.median), "ci95": interval, "values": values, "censored": value.num_censored}
    if isinstance(value, Variant):
        return {"name": value.name, "flags": list(value.flags)}
    if dataclasses.is_dataclass(value):
        return {field.name: _as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _as_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
