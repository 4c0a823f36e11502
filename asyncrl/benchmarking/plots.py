"""PNG plots of a benchmark, through matplotlib if it is there: training needs none of it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.benchmarking.results import Results, Speedup
from asyncrl.benchmarking.statistics import Spread
from asyncrl.benchmarking.variants import Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT_OUT = "There are no plots because matplotlib is not installed: pip install matplotlib, then run this again."
_LAG_NAMES = ("mean", "95th percentile", "largest")


@dataclass(frozen=True)
class Plots:
    """What was drawn.

    Attributes:
        files: PNG files by title.
        left_out: one sentence that says why there are none, if there are none.
    """

    files: dict[str, Path]
    left_out: str | None = None


def draw_plots(results: Results, folder: Path) -> Plots:
    """Draws every plot that there are figures for.

    Args:
        results: what was measured.
        folder: where the files go; made if missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return Plots({}, _LEFT_OUT)
    wanted = {
        "Environment steps a second": ("fps", _draw_fps, any(item.throughput for item in results.variants)),
        "Policy lag at first use": ("lag", _draw_lag, _has_lag(results)),
        "Share of time at work, by role": ("utilisation", _draw_utilisation, _has_shares(results)),
        "Return over environment steps": ("return_over_steps", _draw_over_steps, _has_curves(results)),
        "Return over wall-clock time": ("return_over_time", _draw_over_time, _has_curves(results)),
        "Return over steps of each rank": ("return_over_rank_steps", _draw_over_rank_steps, _has_ranks(results)),
        "Speed-up over workers": ("speedup_workers", _draw_over_workers, _has_speedups(results, "workers")),
        "Speed-up over ranks": ("speedup_ranks", _draw_over_ranks, _has_speedups(results, "ranks")),
    }
    files = {}
    for title, (name, draw, is_wanted) in wanted.items():
        if is_wanted:
            files[title] = _save(results, folder / f"{name}.png", title, draw)
    return Plots(files)


def _save(results: Results, path: Path, title: str, draw: Any) -> Path:
    # The object interface, without pyplot: no window system, no state left behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{results.about.env}: {title[0].lower()}{title[1:]}")
    draw(results, axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _draw_fps(results: Results, axes: Axes) -> None:
    bars = [(f"simulation {name}", figure, "0.7") for name, figure in results.simulation.items()]
    bars += [(r.variant.name, r.throughput.env_steps_per_s, "C0") for r in results.variants if r.throughput is not None]
    for row, (_, figure, color) in enumerate(bars):
        axes.barh(row, figure.median, color=color, xerr=_error(figure), capsize=3)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("environment steps/s (median, 95 % interval)")


def _draw_lag(results: Results, axes: Axes) -> None:
    measured = [r for r in results.variants if r.throughput is not None and r.throughput.lag_records]
    largest = max(record[2] for r in measured if r.throughput is not None for record in r.throughput.lag_records)
    bins = np.linspace(-0.5, largest + 0.5, int(min(largest + 2, 60))).tolist()
    for color, item in enumerate(measured):
        assert item.throughput is not None
        values = np.asarray(item.throughput.lag_records)
        for column, style in ((0, "solid"), (1, "dashed"), (2, "dotted")):
            weights = np.full(len(values), 1 / len(values))
            label = f"{item.variant.name}, {_LAG_NAMES[column]}"
            axes.hist(
                values[:, column], bins, weights=weights, histtype="step", color=f"C{color}", ls=style, label=label
            )
    axes.set_xlabel("lag of a record, one a second (policy versions)")
    axes.set_ylabel("share of records")
    axes.legend(fontsize="small")


def _draw_utilisation(results: Results, axes: Axes) -> None:
    measured = [r for r in results.variants if r.throughput is not None]
    roles = list(dict.fromkeys(n for r in measured if r.throughput for n in r.throughput.shares if n.endswith("_busy")))
    height = 0.8 / max(1, len(measured))
    for idx, item in enumerate(measured):
        assert item.throughput is not None
        for row, role in enumerate(roles):
            if (figure := item.throughput.shares.get(role)) is not None:
                label = item.variant.name if row == 0 else None
                axes.barh(row + idx * height, figure.median, height, color=f"C{idx}", label=label)
    axes.set_yticks(
        [row + 0.4 - height / 2 for row in range(len(roles))],
        [role.removeprefix("perf/").removesuffix("_busy") for role in roles],
    )
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of time at work")
    axes.legend(fontsize="small")


def _draw_over_steps(results: Results, axes: Axes) -> None:
    _draw_curves(results, axes, 0, "environment steps")


def _draw_over_time(results: Results, axes: Axes) -> None:
    _draw_curves(results, axes, 1, "seconds since the command")


def _draw_over_rank_steps(results: Results, axes: Axes) -> None:
    _draw_curves(results, axes, 0, "environment steps of each rank", is_of_each_rank=True)


def _draw_curves(results: Results, axes: Axes, column: int, label: str, is_of_each_rank: bool = False) -> None:
    """Each rank of each seed as a thin line; a legend entry for each variant."""
    for color, item in enumerate(results.variants):
        if item.learning is None:
            continue
        others = [curve for curves in item.learning.other_curves.values() for curve in curves]
        divisor = item.variant.num_ranks if is_of_each_rank else 1
        for idx, curve in enumerate(curve for curve in [*item.learning.curves.values(), *others] if curve):
            values = np.asarray(curve)
            name = item.variant.name if idx == 0 else None
            axes.plot(values[:, column] / divisor, values[:, 2], color=f"C{color}", lw=1.2, alpha=0.8, label=name)
    for threshold in results.about.thresholds:
        axes.axhline(threshold, color="0.6", lw=0.8, ls="dashed")
    axes.set_xlabel(label)
    axes.set_ylabel("return, mean of the last 100 episodes")
    axes.legend(fontsize="small")


def _draw_over_workers(results: Results, axes: Axes) -> None:
    _draw_speedups(results, axes, "workers")


def _draw_over_ranks(results: Results, axes: Axes) -> None:
    _draw_speedups(results, axes, "ranks")


def _draw_speedups(results: Results, axes: Axes, unit: Unit) -> None:
    """A line for each family of variants that differ in the count of the unit only, and the ideal one."""
    families: dict[tuple[Any, ...], list[Speedup]] = {}
    for found in results.speedups:
        if found.unit == unit:
            families.setdefault((found.kind, *found.variant.but_for(unit)), []).append(found)
    for members in families.values():
        members.sort(key=lambda found: found.ideal)
        first = members[0]
        axes.errorbar(
            [found.ideal for found in members],
            [found.speedup.median for found in members],
            yerr=np.hstack([_error(found.speedup) or [[0.0], [0.0]] for found in members]),
            marker="o",
            capsize=3,
            label=f"{first.kind}, from {first.variant.name}",
        )
    most = max(found.ideal for members in families.values() for found in members)
    axes.plot([1.0, most], [1.0, most], color="0.5", ls="dashed", label="ideal")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit}, as a multiple of the fewest")
    axes.set_ylabel("speed-up (median, 95 % interval)")
    axes.legend(fontsize="small")


def _error(figure: Spread) -> list[list[float]] | None:
    if figure.low is None or figure.high is None:
        return None
    return [[max(0.0, figure.median - figure.low)], [max(0.0, figure.high - figure.median)]]


def _has_lag(results: Results) -> bool:
    return any(item.throughput is not None and item.throughput.lag_records for item in results.variants)


def _has_shares(results: Results) -> bool:
    return any(
        name.endswith("_busy") for item in results.variants if item.throughput for name in item.throughput.shares
    )


def _has_curves(results: Results) -> bool:
    return any(any(item.learning.curves.values()) for item in results.variants if item.learning is not None)


def _has_ranks(results: Results) -> bool:
    return _has_curves(results) and any(item.variant.num_ranks > 1 for item in results.variants)


def _has_speedups(results: Results, unit: Unit) -> bool:
    return any(found.unit == unit for found in results.speedups)
