"""The report of a benchmark: tables of medians and their intervals in Markdown, and PNG plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from asyncrl.analysis.benchmark.results import (
    Learning,
    ModeComparison,
    Reached,
    Results,
    ThroughputFigures,
    VariantSpeedup,
)
from asyncrl.analysis.benchmark.variants import Unit, Variant
from asyncrl.analysis.drawing import check_can_draw, color, draw_error_bars, finish, new_figure, save
from asyncrl.analysis.statistics import Spread
from asyncrl.analysis.tables import cell, digits, mebibytes, percent, section
from asyncrl.config.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LAG_LINES = (("mean", "solid"), ("95th percentile", "dashed"), ("largest", "dotted"))

Found = TypeVar("Found")
Columns = Mapping[str, Callable[[Found], str]]
"""The text of each column's cells, by its title."""


@dataclass(frozen=True)
class Plots:
    """PNG files by title, or the reason why there are none."""

    files: dict[str, Path]
    left_out: str | None = None


def to_markdown(results: Results, plots: Plots, folder: Path) -> str:
    """Returns the whole report; paths of plots are relative to its folder."""
    about, throughput = results.about, results.throughput()
    machine, packages = about.provenance["machine"], about.provenance["packages"]
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    sections = [
        f"# Benchmark: {about.env}",
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['memory_bytes'] / 2**30:.1f} GiB, "
        f"device {machine['device']}. Python {about.provenance['python']}, {versions}. "
        f"Code: {', '.join(about.code) or 'nothing measured yet'}.",
        f"`{' '.join(about.provenance['command'])}`",
        "Steps are environment steps (one `env.step` of one environment), not frames. Figures are medians over seeds; "
        "in brackets is the 95 % bootstrap interval of the median where there are several seeds.",
    ]

    actions = "Random actions that are drawn in advance, without a policy"
    if about.policy:
        actions = f"Seeds and actions recorded from the policy of `{about.policy}`, replayed without the policy"
    rows = [[layout, cell(figure)] for layout, figure in results.simulation.items()]
    note = f"{actions}; measured before each round."
    sections.append(section("Pure simulation", note, ["processes x environments", "environment steps/s"], rows))

    note = (
        f"Learning rate 0 (SGD still runs), {about.measure_s:g} s after a warm-up of {about.warm_up_s:g} s after the "
        "first step; shares compare each run with the pure simulation of the same round."
    )
    columns: Columns[ThroughputFigures[Spread]] = {
        "environment steps/s": lambda run: cell(run.env_steps_per_s),
        "of pure simulation": lambda run: cell(run.share_of_simulation, percent),
        "learner samples/s": lambda run: cell(run.learner_samples_per_s),
        "SGD steps/s": lambda run: cell(run.sgd_steps_per_s, digits(1)),
        "samples trained per step collected": lambda run: cell(run.samples_per_env_step, digits(2)),
        "dropped": lambda run: cell(run.dropped_share, percent),
    }
    sections.append(_by_variant("Throughput", note, throughput, columns))

    speedup_notes: dict[Unit, str] = {
        "workers": (
            "Environment steps a second, divided by those of the variant with the fewest workers and the same number "
            "of environments in each, for each seed. Efficiency is this speed-up divided by the ratio of workers. "
            "`python -m asyncrl.plot speedup` and `compare` take the folders in `runs/`."
        ),
        "ranks": (
            "Environment steps a second of all ranks, divided by those of the variant with the fewest ranks and the "
            "same workers and environments in each, for each seed. Efficiency is this speed-up divided by the ratio of "
            "ranks. A minibatch has `batch_size` samples from each rank, so SGD steps use larger minibatches, not more "
            "of them. `python -m asyncrl.plot trial`, `compare` and `speedup` take the folders in `runs/`."
        ),
    }
    speedup_columns: Columns[VariantSpeedup] = {
        "settings": lambda found: "real" if found.kind == "learning" else "learning rate 0",
        "environment steps/s": lambda found: cell(found.env_steps_per_s),
        "SGD steps/s": lambda found: cell(found.sgd_steps_per_s, digits(1)),
        "speed-up": lambda found: cell(found.speedup, digits(2)),
        "efficiency": lambda found: cell(found.efficiency, percent),
    }
    for unit, note in speedup_notes.items():
        found = [(each.variant, each) for each in results.speedups if each.unit == unit]
        sections.append(_by_variant(f"Speed-up over {unit}", note, found, speedup_columns))

    note = (
        "Shares of the learners' time, means over ranks. exchanging: sums over ranks in an iteration, with the wait "
        "for slower ranks. waiting for ranks: before an iteration. at work: all work, exchanges included."
    )
    columns = {
        "exchanging": lambda run: cell(run.shares.get("profile/learner/exchange_with_ranks"), percent),
        "waiting for ranks": lambda run: cell(run.shares.get("profile/learner/wait_for_ranks"), percent),
        "at work": lambda run: cell(run.shares.get("perf/learner_busy"), percent),
    }
    of_ranks = [item for item in throughput if item[0].num_ranks > 1]
    sections.append(_by_variant("Exchanges between ranks", note, of_ranks, columns))

    note = "Sums over all processes of a run. PSS counts a shared page once, RSS counts it once for each process."
    columns = {
        "CPU s per million steps": lambda run: cell(run.cpu_s_per_million_steps),
        "peak PSS, MiB": lambda run: cell(run.peak_pss_bytes, mebibytes),
        "peak RSS, MiB": lambda run: cell(run.peak_rss_bytes, mebibytes),
        "start-up, s": lambda run: cell(run.startup_s, digits(1)),
    }
    sections.append(_by_variant("CPU and memory", note, throughput, columns))

    mean, p95, largest = results.lag_within_dataset
    note = (
        "Age of samples when they are first used: in policy versions (optimizer steps), and in milliseconds where the "
        f"name ends in `_ms`. During the {about.updates_per_dataset} optimizer steps on its dataset, each "
        f"sample ages by another {mean:.1f} versions on average (95th percentile {p95:.1f}, at most {largest})."
    )
    with_lag = [(variant, figures.lag) for variant, figures in throughput if figures.lag]
    lags = dict.fromkeys(name for _, lag in with_lag for name in lag)
    rows = [[variant.name, *(cell(lag.get(name), digits(1)) for name in lags)] for variant, lag in with_lag]
    sections.append(section("Lag at first use", note, ["variant", *lags], rows))

    note = (
        "Shares of time, means over the processes of a role. `_busy`: at work. `profile/ROLE/PHASE`: in this phase of "
        "work or waiting. `_blocked`: waiting to keep the ratio of updates to steps."
    )
    shares = dict.fromkeys(name for _, figures in throughput for name in figures.shares)
    rows = [[f"`{name}`", *(cell(run.shares.get(name), percent) for _, run in throughput)] for name in shares]
    sections.append(
        section("What the roles do", note, ["share of time", *(variant.name for variant, _ in throughput)], rows)
    )

    sections += _learning_sections(results)

    images = [f"![{title}]({path.relative_to(folder).as_posix()})" for title, path in plots.files.items()]
    if images or plots.left_out is not None:
        sections += ["## Plots", plots.left_out or "\n\n".join(images)]
    if results.missing:
        lines = [f"* {name}: {' '.join(reason.split())}" for name, reason in results.missing.items()]
        sections += ["## Measurements without a result", "\n".join(lines)]
    return "\n\n".join(filter(None, sections)) + "\n"


def _learning_sections(results: Results) -> list[str]:
    """Sections of the runs with the real settings."""
    learning = results.learning()
    note = "Runs with the real settings. Seconds count from the start of the command."
    if any(item.variant.num_ranks > 1 for item in results.variants):
        note += " Training episodes are those of the first rank."
    learning_columns: Columns[Learning] = {
        "environment steps": lambda run: cell(run.env_steps),
        "seconds": lambda run: cell(run.wall_s),
        "return, last 100 training episodes": lambda run: cell(run.final_return, digits(1)),
        "return, evaluated": lambda run: cell(run.evaluated_return, digits(1)),
    }
    sections = [_by_variant("Return at the end", note, learning, learning_columns)]

    note = (
        "Steps and seconds of the first record whose mean return of the last 100 training episodes is at least the "
        "threshold. Seeds that never reach it are censored: they count as later than all others."
    )
    reached_columns: Columns[Reached] = {
        "return": lambda reached: f"{reached.threshold:g}",
        "environment steps": lambda reached: cell(reached.env_steps),
        "seconds": lambda reached: cell(reached.seconds, digits(1)),
    }
    all_reached = [(variant, reached) for variant, figures in learning for reached in figures.reached]
    sections.append(_by_variant("Time and steps to a return", note, all_reached, reached_columns))

    note = (
        "Environment steps and seconds that async needs to reach a return, divided by those of sync with the same "
        "seed. Below 1 async is quicker; 0 where only async reached it."
    )
    comparison_columns: Columns[ModeComparison] = {
        "return": lambda found: f"{found.threshold:g}",
        "steps of async / sync": lambda found: cell(found.env_steps, digits(2)),
        "seconds of async / sync": lambda found: cell(found.seconds, digits(2)),
        "seeds that never reached it in either mode": lambda found: str(found.num_neither),
    }
    compared = [(each.variant, each) for each in results.mode_comparisons]
    return [*sections, _by_variant("Async beside sync", note, compared, comparison_columns)]


def _by_variant(title: str, note: str, found: Sequence[tuple[Variant, Found]], columns: Columns[Found]) -> str:
    rows = [[variant.name, *(show(figures) for show in columns.values())] for variant, figures in found]
    return section(title, note, ["variant", *columns], rows)


def draw_plots(results: Results, folder: Path) -> Plots:
    """Draws every plot with figures into a folder, which is created if it is missing."""
    try:
        check_can_draw()
    except UsageError as error:
        return Plots({}, f"There are no plots. {error}")
    plots: dict[str, tuple[str, Callable[[Results, Axes], None]]] = {
        "Environment steps a second": ("fps", _draw_fps),
        "Policy lag at first use": ("lag", _draw_lag),
        "Share of time at work, by role": ("utilisation", _draw_utilisation),
        "Return over environment steps": ("return_over_steps", partial(_draw_curves, column=0)),
        "Return over wall-clock time": ("return_over_time", partial(_draw_curves, column=1)),
        "Return over steps of each rank": ("return_over_rank_steps", _draw_over_rank_steps),
        "Speed-up over workers": ("speedup_workers", partial(_draw_speedups, unit="workers")),
        "Speed-up over ranks": ("speedup_ranks", partial(_draw_speedups, unit="ranks")),
    }
    files = {}
    for title, (name, draw) in plots.items():
        figure = new_figure(8.0, 4.8)
        axes = figure.subplots()
        draw(results, axes)
        if axes.has_data():
            axes.set_title(f"{results.about.env}: {title[0].lower()}{title[1:]}")
            finish(axes)
            files[title] = folder / f"{name}.png"
            save(figure, files[title])
    return Plots(files)


def _draw_fps(results: Results, axes: Axes) -> None:
    measured = results.throughput()
    bars = [(f"simulation {name}", figure, "0.7") for name, figure in results.simulation.items() if measured]
    bars += [(variant.name, figures.env_steps_per_s, color(0)) for variant, figures in measured]
    for row, (_, figure, bar_color) in enumerate(bars):
        value, low, high = _with_interval(figure)
        axes.barh(row, value, color=bar_color, xerr=[[value - low], [high - value]], capsize=3)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("environment steps/s (median, 95 % interval)")


def _draw_lag(results: Results, axes: Axes) -> None:
    records = {variant.name: figures.lag_records for variant, figures in results.throughput() if figures.lag_records}
    largest = max((record[2] for of_variant in records.values() for record in of_variant), default=0.0)
    bins = np.linspace(-0.5, largest + 0.5, int(min(largest + 2, 60))).tolist()
    for number, (name, of_variant) in enumerate(records.items()):
        for values, (line, style) in zip(np.transpose(of_variant), _LAG_LINES, strict=True):
            weights = np.full(len(values), 1 / len(values))
            looks: dict[str, Any] = {
                "histtype": "step",
                "color": color(number),
                "ls": style,
                "label": f"{name}, {line}",
            }
            axes.hist(values, bins, weights=weights, **looks)
    axes.set_xlabel("lag of a record, one a second (policy versions)")
    axes.set_ylabel("share of records")


def _draw_utilisation(results: Results, axes: Axes) -> None:
    measured = results.throughput()
    roles = dict.fromkeys(name for _, figures in measured for name in figures.shares if name.endswith("_busy"))
    height = 0.8 / max(1, len(measured))
    for number, (variant, figures) in enumerate(measured):
        for row, role in enumerate(roles):
            if (figure := figures.shares.get(role)) is not None:
                label = variant.name if row == 0 else None
                axes.barh(row + number * height, figure.median, height, color=color(number), label=label)
    ticks = [row + 0.4 - height / 2 for row in range(len(roles))]
    axes.set_yticks(ticks, [role.removeprefix("perf/").removesuffix("_busy") for role in roles])
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of time at work")


def _draw_over_rank_steps(results: Results, axes: Axes) -> None:
    if any(item.variant.num_ranks > 1 for item in results.variants):
        _draw_curves(results, axes, 0, of_each_rank=True)


def _draw_curves(results: Results, axes: Axes, column: int, of_each_rank: bool = False) -> None:
    """Draws each rank of each seed as a thin line, with a legend entry for each variant."""
    for number, (variant, learning) in enumerate(results.learning()):
        others = [curve for curves in learning.other_curves.values() for curve in curves]
        divisor = variant.num_ranks if of_each_rank else 1
        for idx, curve in enumerate(curve for curve in [*learning.curves.values(), *others] if curve):
            values = np.asarray(curve)
            name = variant.name if idx == 0 else None
            axes.plot(values[:, column] / divisor, values[:, 2], color=color(number), lw=1.2, alpha=0.8, label=name)
    for threshold in results.about.thresholds if axes.has_data() else ():
        axes.axhline(threshold, color="0.6", lw=0.8, ls="dashed")
    steps = "environment steps of each rank" if of_each_rank else "environment steps"
    axes.set_xlabel("seconds since the command" if column else steps)
    axes.set_ylabel("return, mean of the last 100 episodes")


def _draw_speedups(results: Results, axes: Axes, unit: Unit) -> None:
    """Draws a line for each set of variants that differ only in the count of the unit, and the ideal line."""
    families: dict[tuple[Any, ...], list[VariantSpeedup]] = {}
    for found in results.speedups:
        if found.unit == unit:
            families.setdefault((found.kind, *found.variant.without(unit)), []).append(found)
    for number, members in enumerate(families.values()):
        members.sort(key=lambda found: found.ideal)
        points = [_with_interval(found.speedup) for found in members]
        label = f"{members[0].kind}, from {members[0].variant.name}"
        draw_error_bars(axes, [found.ideal for found in members], points, label, number)
    if families:
        most = max(found.ideal for members in families.values() for found in members)
        axes.plot([1.0, most], [1.0, most], color="0.5", ls="dashed", label="ideal")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit}, as a multiple of the fewest")
    axes.set_ylabel("speed-up (median, 95 % interval)")


def _with_interval(figure: Spread) -> tuple[float, float, float]:
    """Returns the median and the ends of its interval; without an interval, the median three times."""
    low = figure.median if figure.low is None else min(figure.low, figure.median)
    high = figure.median if figure.high is None else max(figure.high, figure.median)
    return figure.median, low, high
