"""The report of a benchmark: tables of medians and their intervals in Markdown, and PNG plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from asyncrl.analysis.benchmark.results import Figures, Results
from asyncrl.analysis.benchmark.variants import Unit
from asyncrl.analysis.drawing import check_can_draw, color, draw_error_bars, finish, new_figure, save
from asyncrl.analysis.statistics import Spread
from asyncrl.analysis.tables import cell, digits, mebibytes, percent
from asyncrl.config.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LAG_LINES = (("mean", "solid"), ("95th percentile", "dashed"), ("largest", "dotted"))


@dataclass(frozen=True)
class Plots:
    """PNG files by title, or the reason why there are none."""

    files: dict[str, Path]
    left_out: str | None = None


def to_markdown(results: Results, plots: Plots, folder: Path) -> str:
    """Returns the whole report; paths of plots are relative to its folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    throughput = results.measured("throughput")
    template = environment.get_template("report.md.jinja")
    text = template.render(
        results=results,
        about=results.about,
        machine=results.about["provenance"]["machine"],
        throughput=throughput,
        learning=results.measured("learning"),
        lags=list(dict.fromkeys(name for _, run in throughput for name in run["lag"])),
        shares=list(dict.fromkeys(name for _, run in throughput for name in run["shares"])),
        plots=plots,
        folder=folder,
        digits=digits,
        percent=percent,
        mebibytes=mebibytes,
    )
    return text.rstrip() + "\n"


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
        "Return over steps of each rank": (
            "return_over_rank_steps",
            partial(_draw_curves, column=0, of_each_rank=True),
        ),
        "Speed-up over workers": ("speedup_workers", partial(_draw_speedups, unit="workers")),
        "Speed-up over ranks": ("speedup_ranks", partial(_draw_speedups, unit="ranks")),
    }
    files = {}
    for title, (name, draw) in plots.items():
        figure = new_figure(8.0, 4.8)
        axes = figure.subplots()
        draw(results, axes)
        if axes.has_data():
            axes.set_title(f"{results.about['env']}: {title[0].lower()}{title[1:]}")
            finish(axes)
            files[title] = folder / f"{name}.png"
            save(figure, files[title])
    return Plots(files)


def _draw_fps(results: Results, axes: Axes) -> None:
    measured = results.measured("throughput")
    if not measured:
        return
    simulated = {f"simulation {name}": figure for name, figure in results.simulation.items()}
    bars = simulated | {variant.name: figures["env_steps_per_s"] for variant, figures in measured}
    values, low, high = np.transpose([_with_interval(figure) for figure in bars.values()])
    colors = ["0.7"] * len(simulated) + [color(0)] * len(measured)
    axes.barh(list(bars), values, color=colors, xerr=[values - low, high - values], capsize=3)
    axes.invert_yaxis()
    axes.set_xlabel("environment steps/s (median, 95 % interval)")


def _draw_lag(results: Results, axes: Axes) -> None:
    measured = results.measured("throughput")
    records = {variant.name: np.array(found) for variant, each in measured if (found := each["lag_records"])}
    largest = max((of_variant.max() for of_variant in records.values()), default=0.0)
    bins = np.linspace(-0.5, largest + 0.5, int(min(largest + 2, 60))).tolist()
    for number, (name, of_variant) in enumerate(records.items()):
        weights = np.full(len(of_variant), 1 / len(of_variant))
        for values, (line, style) in zip(of_variant.T, _LAG_LINES, strict=True):
            label = f"{name}, {line}"
            axes.hist(values, bins, weights=weights, histtype="step", color=color(number), ls=style, label=label)
    axes.set_xlabel("lag of a record, one a second (policy versions)")
    axes.set_ylabel("share of records")


def _draw_utilisation(results: Results, axes: Axes) -> None:
    measured = results.measured("throughput")
    roles = list(dict.fromkeys(name for _, each in measured for name in each["shares"] if name.endswith("_busy")))
    height = 0.8 / max(1, len(measured))
    for number, (variant, figures) in enumerate(measured):
        for row, role in enumerate(roles):
            if (figure := figures["shares"].get(role)) is not None:
                label = variant.name if row == 0 else None
                axes.barh(row + number * height, figure.median, height, color=color(number), label=label)
    ticks = [row + 0.4 - height / 2 for row in range(len(roles))]
    axes.set_yticks(ticks, [role.removeprefix("perf/").removesuffix("_busy") for role in roles])
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of time at work")


def _draw_curves(results: Results, axes: Axes, column: int, of_each_rank: bool = False) -> None:
    """Draws each rank of each seed as a thin line, with a legend entry for each variant."""
    if of_each_rank and not results.has_several_ranks:
        return
    for number, (variant, learning) in enumerate(results.measured("learning")):
        others = [curve for curves in learning["other_curves"].values() for curve in curves]
        divisor = variant.num_ranks if of_each_rank else 1
        for idx, curve in enumerate(filter(None, [*learning["curves"].values(), *others])):
            values = np.asarray(curve)
            name = variant.name if idx == 0 else None
            axes.plot(values[:, column] / divisor, values[:, 2], color=color(number), lw=1.2, alpha=0.8, label=name)
    for threshold in results.about["thresholds"] if axes.has_data() else ():
        axes.axhline(threshold, color="0.6", lw=0.8, ls="dashed")
    steps = "environment steps of each rank" if of_each_rank else "environment steps"
    axes.set_xlabel("seconds since the command" if column else steps)
    axes.set_ylabel("return, mean of the last 100 episodes")


def _draw_speedups(results: Results, axes: Axes, unit: Unit) -> None:
    """Draws a line for each set of variants that differ only in the count of the unit, and the ideal line."""
    families: dict[tuple[Any, ...], list[Figures]] = {}
    for found in sorted(results.speedups, key=lambda found: float(found["ideal"])):
        if found["unit"] == unit:
            families.setdefault((found["kind"], *found["variant"].without(unit)), []).append(found)
    for number, members in enumerate(families.values()):
        label = f"{members[0]['kind']}, from {members[0]['variant'].name}"
        points = [_with_interval(found["speedup"]) for found in members]
        draw_error_bars(axes, [found["ideal"] for found in members], points, label, number)
    if families:
        most = max(members[-1]["ideal"] for members in families.values())
        axes.plot([1.0, most], [1.0, most], color="0.5", ls="dashed", label="ideal")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit}, as a multiple of the fewest")
    axes.set_ylabel("speed-up (median, 95 % interval)")


def _with_interval(figure: Spread) -> tuple[float, float, float]:
    """Returns the median and the ends of its interval; without an interval, the median three times."""
    low = figure.median if figure.low is None else min(figure.low, figure.median)
    high = figure.median if figure.high is None else max(figure.high, figure.median)
    return figure.median, low, high
