"""The figures of a benchmark: one row for each task, kept in results.jsonl, and their statistics over seeds.

The figures of a simulation are `env_steps_per_s` and `replayed`: whether the actions are those of recorded episodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas
from pydantic import TypeAdapter

from asyncrl.analysis.benchmark.variants import Task, TaskKind, Unit, Variant, layouts_of
from asyncrl.analysis.benchmark.watch import TaskFailed, Usage
from asyncrl.analysis.records import ELAPSED, STEPS, TRAIN_RETURN, Record, read_json_lines
from asyncrl.analysis.statistics import Spread, first_reached, spread, uniform_lag

FORMAT_VERSION = 1

Figures = dict[str, Any]
"""Figures by name: of one task as in results.jsonl, or of a variant over seeds."""
Entry = dict[str, Any]
"""A line of results.jsonl: the `task`, its `figures`, and the version of asyncrl (`code`) that measured them."""

_FPS, _UPDATES, _DROPPED = "time/fps", "train/n_updates", "perf/dropped_samples"
_LAG_FIGURES = ["lag/mean", "lag/p95", "lag/max"]
_READ = [STEPS, ELAPSED, TRAIN_RETURN, _FPS, _UPDATES, _DROPPED, *_LAG_FIGURES]
_SHARES = r"^profile/|^(perf|replay)/.*_(busy|blocked)$"
_RATES = ["env_steps_per_s", "sgd_steps_per_s"]


def read_results(path: Path) -> dict[Task, Entry]:
    """Reads results.jsonl; returns no results if the file does not exist.

    A result counts only for a task with the same flags and conditions, which include the settings of files.
    """
    read_task = TypeAdapter(Task).validate_python
    return {read_task(entry["task"]): entry for entry in read_json_lines(path)}


def throughput_figures(
    records_of_ranks: Sequence[Sequence[Record]],
    startup_s: float,
    warm_up_s: float,
    num_epochs: int,
    usage: Usage,
    replay_batch_size: int | None = None,
) -> Figures:
    """Computes speed and use of resources after the warm-up, without the run's last record, which includes its end.

    `time/fps` of a record counts from the last dataset of the previous record to its own last dataset. So the windows
    of the records have no gaps, and their sum neither begins nor ends inside a dataset.

    Args:
        records_of_ranks: all records of each rank; those of the first rank count the steps of all.
        startup_s: time of the first environment step, in seconds since the command.
        warm_up_s: seconds after that time that are left out.
        num_epochs: passes over each dataset; 0 for a run that only samples.
        usage: CPU time and memory of the processes.
        replay_batch_size: samples of an update from a replay; `num_epochs` is not used then.

    Returns:
        `learner_samples_per_s` counts samples in every pass; `samples_per_env_step` is how often a collected step is
        trained on, and `dropped_share` the share of the collected steps that were dropped. `lag` has means over the
        records, of maxima the largest; `shares` has shares of time, by published name; `lag_records` has mean, 95th
        percentile and maximum of the lag of every record.

    Raises:
        TaskFailed: no dataset was trained in the window.
    """
    tables = [_timed(records).iloc[:-1] for records in records_of_ranks]
    # A window begins at its first record.
    windows = [table[table[ELAPSED] >= startup_s + warm_up_s] for table in tables]
    first = windows[0]
    with_dataset = first[_FPS].iloc[1:] > 0
    if not with_dataset.any():
        raise TaskFailed(
            f"the run trained on nothing between {warm_up_s:g} s after its first step and its end: raise --measure_s"
        )
    trained_steps = first[STEPS].diff().iloc[1:][with_dataset]
    steps, seconds = int(trained_steps.sum()), float((trained_steps / first[_FPS]).sum())
    dropped = sum(_increase(window, _DROPPED) for window in windows)
    updates = _increase(first, _UPDATES)
    trained = num_epochs * steps if replay_batch_size is None else updates * replay_batch_size
    window = pandas.concat([window.iloc[1:] for window in windows])
    return {
        "window_s": seconds,
        "window_env_steps": steps,
        "env_steps_per_s": steps / seconds,
        "sgd_steps_per_s": updates / seconds,
        "learner_samples_per_s": trained / seconds,
        "samples_per_env_step": trained / (steps + dropped),
        "dropped_share": dropped / (steps + dropped),
        "cpu_s_per_million_steps": usage.cpu_between(first[ELAPSED].iloc[0], first[ELAPSED].iloc[-1]) / steps * 1e6,
        "peak_pss_bytes": usage.peak_pss_bytes,
        "peak_rss_bytes": usage.peak_rss_bytes,
        "startup_s": startup_s,
        "lag": _means(window, "^lag/"),
        "shares": _means(window, _SHARES),
        "lag_records": window[_LAG_FIGURES].dropna().values.tolist(),
    }


def learning_figures(
    records_of_ranks: Sequence[Sequence[Record]], summary: Mapping[str, Any], evaluated_return: float | None
) -> Figures:
    """Returns the figures of a run with the real settings, from the records of each rank and the run's summary.

    `curve` has rank 0's environment steps, seconds since the command, and mean return of the last 100 training
    episodes; `other_curves` has the same for each other rank, and steps of all. The rates, between the first and the
    last record of trained steps, are None if there were no steps between them.
    """
    tables = [table[table[STEPS] > 0] for table in map(_timed, records_of_ranks)]
    curve, *other_curves = [table[[STEPS, ELAPSED, TRAIN_RETURN]].dropna().values.tolist() for table in tables]
    seconds, steps, updates = (_increase(tables[0], name) for name in (ELAPSED, STEPS, _UPDATES))
    return {
        "env_steps": int(summary["env_steps"]),
        "wall_s": float(summary["wall_s"]),
        "final_return": summary["ep_rew_mean"],
        "evaluated_return": evaluated_return,
        "curve": curve,
        "env_steps_per_s": steps / seconds if seconds > 0.0 and steps > 0.0 else None,
        "sgd_steps_per_s": updates / seconds if seconds > 0.0 and updates > 0.0 else None,
        "other_curves": other_curves,
    }


def _timed(records: Sequence[Record]) -> pandas.DataFrame:
    """The records as a table, without those of evaluations, which have no time; NaN for what was not recorded."""
    table = pandas.DataFrame(list(records))
    table = table.reindex(columns=table.columns.union(_READ)).apply(pandas.to_numeric, errors="coerce").astype(float)
    return table[table[ELAPSED].notna()]


def _means(window: pandas.DataFrame, pattern: str) -> dict[str, float]:
    """Returns means over the records by name; of maxima the largest."""
    columns = window.filter(regex=pattern).dropna(axis="columns", how="all")
    return {name: float(each.max() if name.endswith("max") else each.mean()) for name, each in columns.items()}


def _increase(table: pandas.DataFrame, name: str) -> float:
    """Returns the increase of a counter from the first record to the last one."""
    counts = table[name].fillna(0.0)
    return float(counts.iloc[-1] - counts.iloc[0]) if len(counts) > 0 else 0.0


@dataclass(frozen=True)
class Results:
    """All figures of a benchmark; those over seeds are of type `Spread`.

    Attributes:
        about: conditions of the benchmark: settings, `provenance`, the versions of asyncrl (`code`), the checkpoint
            whose `policy` was run and replayed, and the `thresholds` whose time and steps are reported.
        simulation: environment steps per second of pure simulation, by layout.
        variants: `variant`, and its figures in `throughput` and `learning`; None for what was not measured.
        speedups: of variants that differ only in their workers or only in their ranks, seed by seed, over the one with
            the fewest; `efficiency` is `speedup` divided by `ideal`, the ratio of their numbers.
        mode_comparisons: steps and seconds that an async `variant` needs to reach a return, divided by those of sync
            with the same inference, layout and seed: infinite where async never did, 0 where sync never did. Seeds with
            which neither did count in `num_neither` only.
        missing: reasons of measurements without a result.
        lag_within_dataset: see `uniform_lag`.
    """

    about: dict[str, Any]
    simulation: dict[str, Spread]
    variants: tuple[Figures, ...]
    speedups: tuple[Figures, ...]
    mode_comparisons: tuple[Figures, ...]
    missing: dict[str, str]
    lag_within_dataset: tuple[float, float, int]

    def measured(self, kind: TaskKind) -> list[tuple[Variant, Figures]]:
        """Returns the variants with figures of this kind."""
        return [(each["variant"], each[kind]) for each in self.variants if each[kind] is not None]

    @property
    def has_several_ranks(self) -> bool:
        return any(each["variant"].num_ranks > 1 for each in self.variants)

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; infinite and unknown numbers are None."""
        about = {"format_version": FORMAT_VERSION, "unit_of_steps": "environment steps, never frames"}
        return {**about, **_as_data(self)}


def summarize(
    about: dict[str, Any], variants: Sequence[Variant], measured: Mapping[Task, Figures], missing: Mapping[str, str]
) -> Results:
    """Computes the statistics of all tasks with a result; `missing` has the reasons of the others.

    Without thresholds in `about` those of `common_thresholds` are taken.
    """

    def runs_of(kind: TaskKind, name: str) -> pandas.DataFrame:
        by_seed = {task.seed: row for task, row in measured.items() if (task.kind, task.name) == (kind, name)}
        return pandas.DataFrame(list(by_seed.values()), index=list(by_seed))

    simulated = {str(layout): runs_of("simulation", str(layout)) for layout in layouts_of(variants)}
    rates = {name: runs["env_steps_per_s"] for name, runs in simulated.items() if len(runs) > 0}
    throughput = {variant: runs for variant in variants if len(runs := runs_of("throughput", variant.name)) > 0}
    learning = {variant: runs for variant in variants if len(runs := runs_of("learning", variant.name)) > 0}
    if not about["thresholds"]:
        curves = [curve for runs in learning.values() for curve in runs["curve"]]
        about = {**about, "thresholds": common_thresholds(curves)}
    for variant, runs in throughput.items():
        own, simulation = runs["env_steps_per_s"], rates.get(str(variant.simulated), pandas.Series(dtype=float))
        runs["share_of_simulation"] = own / simulation.reindex(own.index)
    return Results(
        about=about,
        simulation={name: spread(found.tolist()) for name, found in rates.items()},
        variants=tuple(
            {
                "variant": variant,
                "throughput": _over_seeds(throughput[variant]) if variant in throughput else None,
                "learning": _learning(learning[variant], about["thresholds"]) if variant in learning else None,
            }
            for variant in variants
        ),
        speedups=tuple(
            found
            for unit in get_args(Unit)
            for found in (*_speedups(unit, "throughput", throughput), *_speedups(unit, "learning", learning))
        ),
        mode_comparisons=tuple(_mode_comparisons(learning, about["thresholds"])),
        missing=dict(missing),
        lag_within_dataset=uniform_lag(about["updates_per_dataset"]),
    )


def _over_seeds(runs: pandas.DataFrame) -> Figures:
    """Joins each figure of all runs: numbers to a spread, dicts by their common names, lists to one list."""
    joined: Figures = {}
    for name, column in runs.items():
        values = column.dropna().tolist()
        if values and isinstance(values[0], dict):
            joined[name] = _over_seeds(pandas.DataFrame(values).dropna(axis="columns"))
        elif values and isinstance(values[0], list):
            joined[name] = [item for of_run in values for item in of_run]
        else:
            joined[name] = spread(values) if values else None
    return joined


def _learning(runs: pandas.DataFrame, thresholds: Sequence[float]) -> Figures:
    return {
        **_over_seeds(runs[["env_steps", "wall_s", "final_return", "evaluated_return"]]),
        "reached": [{"threshold": each, **_over_seeds(_reached(runs, each))} for each in thresholds],
        "curves": runs["curve"].to_dict(),
        "other_curves": runs["other_curves"].to_dict(),
    }


def _reached(runs: pandas.DataFrame, threshold: float) -> pandas.DataFrame:
    """Returns steps and seconds until each run first reached a return; infinite if it never did."""
    columns = {
        name: [first_reached([(point[column], point[2]) for point in curve], threshold) for curve in runs["curve"]]
        for column, name in enumerate(("env_steps", "seconds"))
    }
    return pandas.DataFrame(columns, index=runs.index)


def common_thresholds(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[float, ...]:
    """Returns thresholds that every run reached: a half and nine tenths of the way to the highest of them.

    The way begins at the lowest first return of all runs. There are none if a run has no return or none improves on it.
    """
    returns = [[point[2] for point in curve] for curve in curves]
    if not returns or not all(returns):
        return ()
    first, best = min(of_run[0] for of_run in returns), min(max(of_run) for of_run in returns)
    return tuple(first + share * (best - first) for share in (0.5, 0.9)) if best > first else ()


def _mode_comparisons(runs: Mapping[Variant, pandas.DataFrame], thresholds: Sequence[float]) -> Iterator[Figures]:
    for variant, own in runs.items():
        sync = runs.get(dataclasses.replace(variant, mode="sync"), own.iloc[:0])
        seeds = own.index.intersection(sync.index)
        for threshold in thresholds if variant.mode == "async" and len(seeds) > 0 else ():
            # NaN where neither reached the return, and for seeds of one mode only.
            ratios = (_reached(own, threshold) / _reached(sync, threshold)).dropna()
            num_neither = len(seeds) - len(ratios)
            yield {"variant": variant, "threshold": threshold, **_over_seeds(ratios), "num_neither": num_neither}


def _speedups(unit: Unit, kind: TaskKind, runs: Mapping[Variant, pandas.DataFrame]) -> Iterator[Figures]:
    rates = {variant: found for variant, each in runs.items() if len(found := each[_RATES].dropna()) > 0}
    for variant, own in rates.items():
        alike = [other for other in rates if other.without(unit) == variant.without(unit)]
        base = min(alike, key=lambda other: other.count(unit))
        ratios = (own["env_steps_per_s"] / rates[base]["env_steps_per_s"]).dropna()
        if len(alike) == 1 or len(ratios) == 0:
            continue
        ideal = variant.count(unit) / base.count(unit)
        yield {
            "unit": unit,
            "variant": variant,
            "ideal": ideal,
            "kind": kind,
            **_over_seeds(own),
            "speedup": spread(ratios.tolist()),
            "efficiency": spread((ratios / ideal).tolist()),
        }


def _as_data(value: Any) -> Any:
    if isinstance(value, Spread):
        interval = None if value.low is None else [value.low, value.high]
        found = {"median": value.median, "ci95": interval, "values": value.values, "censored": value.num_censored}
        return _as_data(found)
    if isinstance(value, Variant):
        return {"name": value.name, "flags": list(value.flags)}
    if dataclasses.is_dataclass(value):
        return {field.name: _as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _as_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
