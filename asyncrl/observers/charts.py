"""Numbers and curves as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from asyncrl.observers.summary import UNKNOWN

_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BARS = ".:-=+*#@"
_NO_DOTS = 0x2800  # the first braille character
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, from the top, in its left and its right column."""


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
    """Values over environment steps as a line of braille dots between two labelled axes.

    Returns `height` rows of `width` characters: the part of the axes, and that of the line.
    """
    low, high = min(point.value for point in points), max(point.value for point in points)
    num_rows = height - 2
    labels = {(num_rows - 1) // 2: number((low + high) / 2), 0: number(high), num_rows - 1: number(low)}
    margin = max(map(len, labels.values()))
    num_columns = width - margin - 2
    cells = [[_NO_DOTS] * num_columns for _ in range(num_rows)]
    heights = [
        round((high - value) / ((high - low) or 1.0) * (4 * num_rows - 1))
        for value in resampled(points, 2 * num_columns)
    ]
    for x, (before, y) in enumerate(zip([heights[0], *heights], heights, strict=False)):
        for dot in range(min(y, before + 1), max(y, before - 1) + 1):  # joins the column before
            cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
    rows = [
        (f"{labels.get(idx, ''):>{margin}} {'┤' if idx in labels else '│'}", "".join(map(chr, row)))
        for idx, row in enumerate(cells)
    ]
    first, last = f"{points[0].env_steps:,}", f"{points[-1].env_steps:,} steps"
    rows.append((" " * (margin + 1) + "└" + "─" * num_columns, ""))
    return [*rows, (" " * (margin + 2) + first + last.rjust(num_columns - len(first)), "")]
