"""Draws PNG, PDF and SVG files with matplotlib's object interface: no window system, no global state."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.analysis.curves import Band
from asyncrl.analysis.figures import TIMES, Comparison, Metric, Speedup, Trial, XAxis
from asyncrl.config.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design": distinct for every kind of colour vision. Yellow is too faint on white.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("solid", "dashed", "dotted", "dashdot")
X_LABELS: dict[XAxis, str] = {
    "per_worker_steps": "environment steps of each worker",
    "per_rank_steps": "environment steps of each rank",
    "env_steps": "environment steps of all workers",
    "processor_time": "processor time of rollout, inference and learner processes",
    "wall_time": "time since the start",
}
_Y_LABELS: dict[Metric, str] = {
    "train": "return of training episodes (reward)",
    "eval": "return of evaluation episodes (reward)",
}
_DPI = 120
GRID = "#e6e6e6"
FORMATS = (".png", ".pdf", ".svg")
"""Suffixes of the possible file formats."""


def check_can_draw() -> None:
    """Raises UsageError, with what to install, if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("Figures need matplotlib, which is not installed: pip install matplotlib")


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure; sizes are in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def color(number: int) -> str:
    """Returns the colour of a line by its number."""
    return _COLORS[number % len(_COLORS)]


def style(number: int) -> str:
    """Returns the style of a line by its number: lines of the same colour have different ones."""
    return _STYLES[number // len(_COLORS) % len(_STYLES)]


def finish(axes: Axes) -> None:
    """Adds a grid to axes, and a legend if something has a label."""
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", frameon=True, framealpha=0.85, edgecolor="none")


def save(figure: Figure, path: Path) -> None:
    """Writes a figure in the format of the file's suffix, and creates the folder if it is missing.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI, format=path.suffix.lower().removeprefix("."))
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}. Choose another file.") from error


def draw_trial(trial: Trial, path: Path) -> None:
    """Draws the returns of a run and their moving average; a band over workers or ranks has a separate panel above."""
    has_band, has_average = len(trial.members) > 1, trial.window > 1
    num_panels = 2 if has_band and has_average else 1
    figure = new_figure(8.0, 1.5 + 2.75 * num_panels)
    panels = list(figure.subplots(num_panels, 1, sharex=True, squeeze=False).flat)
    label = f"mean of {trial.num_averaged}" if trial.members else "mean over the last 100 episodes of all workers"
    if has_band:
        draw_band(panels[0], trial.returns, label, 0, f"one standard deviation over {trial.unit}s")
    elif not has_average:
        draw_band(panels[0], Band(trial.returns.positions, trial.returns.mean, None), label, 0)
    if has_average:
        steps = trial.returns.positions
        full = trial.window - 1  # earlier means are over fewer records than the label says
        panels[-1].plot(steps, trial.returns.mean, color=color(0), lw=1.2, alpha=0.5, label=label)
        label = f"moving average of {trial.window:,} records"
        marker = point_marker(len(steps) - full, most=1)
        panels[-1].plot(steps[full:], trial.average[full:], color=color(1), lw=1.8, label=label, **marker)
    panels[0].set_title(trial.run)
    panels[-1].set_xlabel(X_LABELS[trial.x])
    for axes in panels:
        count_in_thousands(axes)
        axes.set_ylabel(_Y_LABELS["train"])
        finish(axes)
    save(figure, path)


def draw_comparison(comparison: Comparison, path: Path, numbers: Sequence[int] | None = None) -> None:
    """Draws a line and a band for each group, and its runs as thin lines; `numbers` are those of the colours."""
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    ends = [curve.positions[-1] for group in comparison.groups for curve in group.curves]
    unit, seconds = _time_unit(max(ends)) if comparison.x in TIMES else ("", 1.0)
    numbers = range(len(comparison.groups)) if numbers is None else numbers
    for number, group in zip(numbers, comparison.groups, strict=True):
        label, band = group.name, group.band
        if len(group.runs) > 1:
            label = f"{group.name} ({len(group.runs)} runs, mean ± standard deviation)"
            for curve in group.curves:
                axes.plot(curve.positions / seconds, curve.values, color=color(number), lw=0.6, alpha=0.4)
        draw_band(axes, Band(band.positions / seconds, band.mean, band.std), label, number)
    axes.set_xlabel(X_LABELS[comparison.x] + (f" ({unit})" if unit else ""))
    if not unit:
        count_in_thousands(axes)
    axes.set_ylabel(_Y_LABELS[comparison.metric])
    count = sum(len(group.runs) for group in comparison.groups)
    axes.set_title(f"{comparison.env or 'comparison'}: {count} run{'s' if count > 1 else ''}")
    finish(axes)
    save(figure, path)


def draw_speedup(speedup: Speedup, path: Path) -> None:
    """Draws the measured speed-up over workers or ranks with the efficiencies, and the ideal line."""
    figure = new_figure(7.0, 5.0)
    axes = figure.subplots()
    counts = [count.count for count in speedup.counts]
    has_several = any(count.num_runs > 1 for count in speedup.counts)
    axes.plot(counts, [count.ideal for count in speedup.counts], color="0.5", ls="dashed", label="ideal")
    points = [(each.speedup.median, each.speedup.low, each.speedup.high) for each in speedup.counts]
    label = "measured" + (" (median and range of the runs)" if has_several else "")
    draw_error_bars(axes, counts, points, label, 0)
    if has_several:
        at, values = [run.count for run in speedup.runs], [run.speedup for run in speedup.runs]
        axes.scatter(at, values, s=14, color=color(1), alpha=0.8, zorder=3, label="each run")
    for count in speedup.counts:
        where, text = (count.count, count.speedup.median), f"{count.efficiency.median:.0%}"
        axes.annotate(text, where, xytext=(8, -14), textcoords="offset points", color=color(0))
    axes.set_title(f"Time to {speedup.common_env_steps:,.0f} environment steps; percentages are efficiencies")
    axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.1)
    axes.set_xlabel("rollout workers (number)" if speedup.unit == "worker" else "ranks (number)")
    axes.set_ylabel(f"speed-up (times as fast as with {speedup.base_count})")
    finish(axes)
    save(figure, path)


def draw_error_bars(
    axes: Axes, positions: list[Any], points: list[tuple[float, float, float]], label: str, number: int
) -> None:
    """Draws a line through points; each is a value with the ends of its interval."""
    errors = [[value - low for value, low, _ in points], [high - value for value, _, high in points]]
    values = [value for value, _, _ in points]
    axes.errorbar(positions, values, yerr=errors, color=color(number), marker="o", capsize=4, lw=1.8, label=label)


def draw_band(axes: Axes, band: Band, label: str, number: int, band_label: str | None = None) -> None:
    """Draws a line in the colour and style of its number, and the band around it if there is one."""
    # A mean over curves has the points of all of them, so their markers would say nothing.
    marker = point_marker(len(band.positions), most=20 if band.std is None else 1)
    axes.plot(band.positions, band.mean, color=color(number), ls=style(number), lw=1.8, label=label, **marker)
    if band.std is not None:
        low, high = band.mean - band.std, band.mean + band.std
        axes.fill_between(band.positions, low, high, color=color(number), alpha=0.2, lw=0, label=band_label)


def point_marker(num_points: int, most: int) -> dict[str, Any]:
    """Markers for a curve with few points: a single point has no line."""
    return {"marker": "o", "markersize": 3.5} if num_points <= most else {}


def _time_unit(longest_s: float) -> tuple[str, float]:
    """Returns a readable unit for a time, and its seconds."""
    if longest_s < 300:
        return "s", 1.0
    return ("minutes", 60.0) if longest_s < 3 * 3600 else ("hours", 3600.0)


def count_in_thousands(axes: Axes) -> None:
    """Shows 2,500,000 as 2.5 M."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter())
