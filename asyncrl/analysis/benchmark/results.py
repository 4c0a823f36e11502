"""All figures of a benchmark, summed up over seeds: what the report, the plots and the JSON file are made of."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from asyncrl.analysis.benchmark.figures import Figures, LearningFigures, SimulationFigures, ThroughputFigures
from asyncrl.analysis.benchmark.variants import Task, TaskKind, Unit, Variant, layouts_of
from asyncrl.analysis.speedup import efficiency
from asyncrl.analysis.statistics import Spread, first_reached, spread, uniform_lag

FORMAT_VERSION = 1

AnyFigures = TypeVar("AnyFigures", SimulationFigures, ThroughputFigures[float], LearningFigures)


@dataclass(frozen=True)
class About:
    """What was measured, how, and with what.

    Attributes:
        policy: checkpoint whose policy was run and replayed; None for a policy at its start and random actions.
        thresholds: returns whose time and steps are looked for.
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
    """Learning of a variant, over seeds; names as in `LearningFigures`."""

    env_steps: Spread
    wall_s: Spread
    final_return: Spread | None
    evaluated_return: Spread | None
    reached: tuple[Reached, ...]
    curves: dict[int, list[list[float]]]
    other_curves: dict[int, list[list[list[float]]]]


@dataclass(frozen=True)
class VariantResult:
    """What is known of one variant."""

    variant: Variant
    throughput: ThroughputFigures[Spread] | None
    learning: Learning | None


@dataclass(frozen=True)
class VariantSpeedup:
    """A variant against the one with the fewest workers or ranks of those that are the same otherwise, in each seed.

    Attributes:
        ideal: its number of workers or ranks, divided by the fewest.
        kind: what kind of runs it was measured in.
        speedup: environment steps a second, divided by those with the fewest.
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
class Results:
    """Everything.

    Attributes:
        simulation: environment steps a second of pure simulation, by layout.
        speedups: of variants that differ in their workers or in their ranks only.
        missing: measurements without a result, and why.
        lag_within_dataset: see `uniform_lag`.
    """

    about: About
    simulation: dict[str, Spread]
    variants: tuple[VariantResult, ...]
    speedups: tuple[VariantSpeedup, ...]
    missing: dict[str, str]
    lag_within_dataset: tuple[float, float, int]

    def throughput(self) -> list[tuple[Variant, ThroughputFigures[Spread]]]:
        """The variants whose throughput was measured."""
        return [(item.variant, item.throughput) for item in self.variants if item.throughput is not None]

    def learning(self) -> list[tuple[Variant, Learning]]:
        """The variants that learned."""
        return [(item.variant, item.learning) for item in self.variants if item.learning is not None]

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; what is infinite or not known is None."""
        about = {"format_version": FORMAT_VERSION, "unit_of_steps": "environment steps, never frames"}
        return {**about, **_as_data(self)}


def summarize(
    about: About, variants: Sequence[Variant], measured: Mapping[Task, Figures], missing: Mapping[str, str]
) -> Results:
    """Sums up the figures of all tasks that have a result; `missing` says why others have none."""
    simulation = {
        str(layout): _by_seed(measured, "simulation", str(layout), SimulationFigures) for layout in layouts_of(variants)
    }
    results = []
    for variant in variants:
        throughput = _by_seed(measured, "throughput", variant.name, ThroughputFigures)
        learning = _by_seed(measured, "learning", variant.name, LearningFigures)
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
    """One figure of all runs: numbers as a spread, mappings by the names that all have, lists one after the other."""
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
        return spread([first_reached([(point[column], point[2]) for point in run.curve], threshold) for run in runs])

    return Learning(
        env_steps=spread([run.env_steps for run in runs]),
        wall_s=spread([run.wall_s for run in runs]),
        final_return=_over_seeds([run.final_return for run in runs]),
        evaluated_return=_over_seeds([run.evaluated_return for run in runs]),
        reached=tuple(Reached(each, reached(each, column=0), reached(each, column=1)) for each in thresholds),
        curves={seed: run.curve for seed, run in by_seed.items()},
        other_curves={seed: run.other_curves for seed, run in by_seed.items()},
    )


def _speedups(variants: Sequence[Variant], measured: Mapping[Task, Figures], unit: Unit) -> Iterator[VariantSpeedup]:
    # By kind of run and variant, for each seed environment and optimizer steps a second.
    paces: dict[tuple[TaskKind, Variant], dict[int, tuple[float, float]]] = {}
    kinds: tuple[TaskKind, ...] = ("throughput", "learning")
    for (kind, variant), (task, found) in itertools.product(itertools.product(kinds, variants), measured.items()):
        if (task.kind, task.name) != (kind, variant.name) or isinstance(found, SimulationFigures):
            continue
        if found.env_steps_per_s is not None and found.sgd_steps_per_s is not None:
            paces.setdefault((kind, variant), {})[task.seed] = found.env_steps_per_s, found.sgd_steps_per_s
    for (kind, variant), own in paces.items():
        alike = [other for other in paces if other[0] == kind and other[1].but_for(unit) == variant.but_for(unit)]
        base = min(alike, key=lambda other: other[1].count(unit))
        ratios = [pace[0] / paces[base][seed][0] for seed, pace in own.items() if seed in paces[base]]
        if len(alike) == 1 or not ratios:
            continue
        counts = variant.count(unit), base[1].count(unit)
        yield VariantSpeedup(
            unit=unit,
            variant=variant,
            ideal=counts[0] / counts[1],
            kind=kind,
            env_steps_per_s=spread([steps for steps, _ in own.values()]),
            sgd_steps_per_s=spread([updates for _, updates in own.values()]),
            speedup=spread(ratios),
            efficiency=spread([efficiency(ratio, *counts) for ratio in ratios]),
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
