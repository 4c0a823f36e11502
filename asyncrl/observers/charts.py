"""Numbers and curves as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncrl.observers.summary import UNKNOWN

_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BARS = ".:-=+*#@"


class Point(NamedTuple):
    """A value of a metric after some environment steps and seconds."""

    env_steps: int
    elapsed_s: float
    value: float


def number(value: float | None) -> str:
    """A number with about four digits."""
    if value is None or value != value:
        return UNKNOWN
    if value == 0 or 0.001 <= abs(value) < 1:
        return f"{value:.3f}" if value else "0"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def sparkline(values: Sequence[float], width: int, is_ascii: bool = False) -> str:
    """The newest values as bars, each at most once, the largest of them as the highest bar."""
    bars = _ASCII_BARS if is_ascii else _BARS
    shown = [value for value in values if value == value][-max(0, width) :] if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1)) if high > low else 0] for value in shown)


def resampled(points: Sequence[Point], count: int) -> list[float]:
    """Values at `count` places with equal distances in environment steps, linear between two points."""
    steps = [point.env_steps for point in points]
    values: list[float] = np.interp(np.linspace(steps[0], steps[-1], count), steps, [p.value for p in points]).tolist()
    return values


def curve(points: Sequence[Point], width: int, height: int) -> list[tuple[str, str]]:
    """Values over environment steps as bars above an axis of steps, beside an axis of values.

    Returns `height` rows of `width` characters: the part of the axes, and that of the bars.
    """
    low, high = min(point.value for point in points), max(point.value for point in points)
    num_rows = height - 2
    labels = {(num_rows - 1) // 2: number((low + high) / 2), 0: number(high), num_rows - 1: number(low)}
    margin = max(map(len, labels.values()))
    num_columns = width - margin - 2
    most = len(_BARS) * num_rows
    heights = [
        1 + round((value - low) / ((high - low) or 1.0) * (most - 1)) for value in resampled(points, num_columns)
    ]
    rows = []
    for row in range(num_rows):
        below = len(_BARS) * (num_rows - 1 - row)
        cells = (f" {_BARS}"[max(0, min(each - below, len(_BARS)))] for each in heights)
        rows.append((f"{labels.get(row, ''):>{margin}} {'┤' if row in labels else '│'}", "".join(cells)))
    first, last = f"{points[0].env_steps:,}", f"{points[-1].env_steps:,} steps"
    rows.append((" " * (margin + 1) + "└" + "─" * num_columns, ""))
    return [*rows, (" " * (margin + 2) + first + last.rjust(num_columns - len(first)), "")]
