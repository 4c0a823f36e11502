"""All figures of a benchmark, summed up over seeds: what the report, the plots and the JSON file are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from asyncrl.benchmarking.figures import LearningFigures, ThroughputFigures
from asyncrl.benchmarking.statistics import Spread, first_reached, spread, uniform_lag
from asyncrl.benchmarking.store import Figures, SimulationFigures
from asyncrl.benchmarking.variants import Task, TaskKind, Unit, Variant, layouts_of

FORMAT_VERSION = 1

AnyFigures = TypeVar("AnyFigures", SimulationFigures, ThroughputFigures, LearningFigures)


@dataclass(frozen=True)
class About:
    """What was measured, how, and with what.

    Attributes:
        env: the environment.
        policy: checkpoint whose policy was run and replayed; None for a policy at its start and random actions.
        thresholds: returns whose time and steps are looked for.
        warm_up_s, measure_s: seconds of a throughput run that are left out, and that are measured.
        updates_per_dataset: optimizer steps on one dataset.
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
class Throughput:
    """Throughput of a variant, over seeds; names as in `ThroughputFigures`.

    `share_of_simulation` compares each run with the pure simulation of its own round.
    """

    env_steps_per_s: Spread
    share_of_simulation: Spread | None
    sgd_steps_per_s: Spread
    learner_samples_per_s: Spread
    samples_per_env_step: Spread
    dropped_share: Spread
    cpu_s_per_million_steps: Spread
    peak_pss_bytes: Spread | None
    peak_rss_bytes: Spread
    startup_s: Spread
    window_s: Spread
    lag: dict[str, Spread]
    shares: dict[str, Spread]
    lag_records: list[list[float]]


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
    throughput: Throughput | None
    learning: Learning | None


@dataclass(frozen=True)
class Speedup:
    """A variant against the one with the fewest workers or ranks of those that are the same otherwise, in each seed.

    Attributes:
        unit: what those variants differ in.
        variant: which one.
        ideal: its number of workers or ranks, divided by the fewest.
        kind: what kind of runs it was measured in.
        env_steps_per_s, sgd_steps_per_s: environment and optimizer steps a second.
        speedup: environment steps a second, divided by those with the fewest.
        efficiency: speed-up divided by the ideal one; 1.0 is 100 %.
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
        about: what was measured.
        simulation: environment steps a second of pure simulation, by layout.
        variants: in the order in which they were asked for.
        speedups: of variants that differ in their workers or in their ranks only; none if there are no such variants.
        missing: measurements without a result, and why.
        lag_within_dataset: mean, 95th percentile and maximum of the versions by which samples age inside a dataset.
    """

    about: About
    simulation: dict[str, Spread]
    variants: tuple[VariantResult, ...]
    speedups: tuple[Speedup, ...]
    missing: dict[str, str]
    lag_within_dataset: tuple[float, float, int]

    def to_json(self) -> dict[str, Any]:
        """Returns plain data; what is infinite or not known is None."""
        data: dict[str, Any] = {"format_version": FORMAT_VERSION, "unit_of_steps": "environment steps, never frames"}
        data.update(_as_data(self))
        return data


def summarize(
    about: About, variants: Sequence[Variant], measured: Mapping[Task, Figures], missing: Mapping[str, str]
) -> Results:
    """Sums up the figures of all tasks.

    Args:
        about: what was measured.
        variants: in the order in which they are to be shown.
        measured: figures of the tasks that have a result.
        missing: what has none, and why.
    """
    rates = {
        str(layout): {
            seed: found.env_steps_per_s
            for seed, found in _by_seed(measured, "simulation", str(layout), SimulationFigures).items()
        }
        for layout in layouts_of(variants)
    }
    results = []
    for variant in variants:
        throughput = _by_seed(measured, "throughput", variant.name, ThroughputFigures)
        learning = _by_seed(measured, "learning", variant.name, LearningFigures)
        results.append(
            VariantResult(
                variant,
                _throughput(throughput, rates[str(variant.simulated)]) if throughput else None,
                _learning(learning, about.thresholds) if learning else None,
            )
        )
    return Results(
        about=about,
        simulation={name: spread(list(by_seed.values())) for name, by_seed in rates.items() if by_seed},
        variants=tuple(results),
        speedups=tuple(
            speedup
            for unit in get_args(Unit)
            for kind in ("throughput", "learning")
            for speedup in _speedups(variants, measured, kind, unit)
        ),
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


def _throughput(by_seed: Mapping[int, ThroughputFigures], simulation: Mapping[int, float]) -> Throughput:
    runs = list(by_seed.values())

    def over_seeds(figure: Callable[[ThroughputFigures], float]) -> Spread:
        return spread([figure(run) for run in runs])

    shares = [run.env_steps_per_s / simulation[seed] for seed, run in by_seed.items() if seed in simulation]
    pss = [float(run.peak_pss_bytes) for run in runs if run.peak_pss_bytes is not None]
    return Throughput(
        env_steps_per_s=over_seeds(lambda run: run.env_steps_per_s),
        share_of_simulation=spread(shares) if shares else None,
        sgd_steps_per_s=over_seeds(lambda run: run.sgd_steps_per_s),
        learner_samples_per_s=over_seeds(lambda run: run.learner_samples_per_s),
        samples_per_env_step=over_seeds(lambda run: run.samples_per_env_step),
        dropped_share=over_seeds(lambda run: run.dropped_share),
        cpu_s_per_million_steps=over_seeds(lambda run: run.cpu_s_per_million_steps),
        peak_pss_bytes=spread(pss) if pss else None,
        peak_rss_bytes=over_seeds(lambda run: run.peak_rss_bytes),
        startup_s=over_seeds(lambda run: run.startup_s),
        window_s=over_seeds(lambda run: run.window_s),
        lag=_named([run.lag for run in runs]),
        shares=_named([run.shares for run in runs]),
        lag_records=[record for run in runs for record in run.lag_records],
    )


def _learning(by_seed: Mapping[int, LearningFigures], thresholds: Iterable[float]) -> Learning:
    runs = list(by_seed.values())
    final = [run.final_return for run in runs if run.final_return is not None]
    evaluated = [run.evaluated_return for run in runs if run.evaluated_return is not None]
    return Learning(
        env_steps=spread([run.env_steps for run in runs]),
        wall_s=spread([run.wall_s for run in runs]),
        final_return=spread(final) if final else None,
        evaluated_return=spread(evaluated) if evaluated else None,
        reached=tuple(
            Reached(
                threshold,
                spread([first_reached([(steps, value) for steps, _, value in run.curve], threshold) for run in runs]),
                spread([first_reached([(at_s, value) for _, at_s, value in run.curve], threshold) for run in runs]),
            )
            for threshold in thresholds
        ),
        curves={seed: run.curve for seed, run in by_seed.items()},
        other_curves={seed: run.other_curves for seed, run in by_seed.items()},
    )


def _speedups(
    variants: Sequence[Variant], measured: Mapping[Task, Figures], kind: TaskKind, unit: Unit
) -> Iterator[Speedup]:
    names = {variant.name: variant for variant in variants}
    paces: dict[Variant, dict[int, tuple[float, float]]] = {}
    for task, figures in measured.items():
        if task.kind != kind or task.name not in names or isinstance(figures, SimulationFigures):
            continue
        if figures.env_steps_per_s is not None and figures.sgd_steps_per_s is not None:
            paces.setdefault(names[task.name], {})[task.seed] = (figures.env_steps_per_s, figures.sgd_steps_per_s)
    for variant in filter(paces.__contains__, variants):
        alike = [other for other in paces if other.but_for(unit) == variant.but_for(unit)]
        base = min(alike, key=lambda other: other.count(unit))
        ratios = [pace[0] / paces[base][seed][0] for seed, pace in paces[variant].items() if seed in paces[base]]
        if len(alike) == 1 or not ratios:
            continue
        ideal = variant.count(unit) / base.count(unit)
        steps, updates = zip(*paces[variant].values(), strict=True)
        efficiencies = [ratio / ideal for ratio in ratios]
        rates = spread(steps), spread(updates)
        yield Speedup(unit, variant, ideal, kind, *rates, spread(ratios), spread(efficiencies))


def _named(found: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """One spread for each name that every run has."""
    names = [name for name in found[0] if all(name in figures for figures in found)]
    return {name: spread([figures[name] for figures in found]) for name in names}


def _as_data(value: Any) -> Any:
    if isinstance(value, Spread):
        interval = None if value.low is None else [_as_data(value.low), _as_data(value.high)]
        values = [_as_data(one) for one in value.values]
        return {"median": _as_data(value.median), "ci95": interval, "values": values, "censored": value.num_censored}
    if isinstance(value, Variant):
        return {"name": value.name, "flags": list(value.flags)}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _as_data(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(name): _as_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_data(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
