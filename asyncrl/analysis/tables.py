"""Markdown tables of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from asyncrl.analysis.statistics import Spread

Form = Callable[[float], str]
UNKNOWN = "-"
_MEBIBYTE = 1024 * 1024


def number(value: float, digits: int = 0) -> str:
    """Returns a number with digits after the point; infinity is `not reached`."""
    return "not reached" if math.isinf(value) else f"{value:,.{digits}f}"


def digits(count: int) -> Form:
    """Returns a format with this number of digits after the point."""
    return lambda value: number(value, count)


def rounded(value: float) -> str:
    """Returns a score: with two digits after the point below 10, without from 10 on."""
    return f"{value:.0f}" if abs(value) >= 10.0 else f"{value:.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def mebibytes(value: float) -> str:
    return number(value / _MEBIBYTE)


def cell(figure: Spread | None, form: Form = number) -> str:
    """Returns a median with its interval and the number of censored seeds."""
    if figure is None:
        return UNKNOWN
    text = form(figure.median)
    if figure.low is not None and figure.high is not None and figure.low != figure.high:
        text += f" [{form(figure.low)}, {form(figure.high)}]"
    if figure.num_censored:
        text += f" ({figure.num_censored} of {len(figure.values)} seeds censored)"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(title: str, note: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a section of a report with one table; empty if the table has no rows."""
    if not rows:
        return ""
    return "\n\n".join(filter(None, [f"## {title}", note, table(header, rows)]))
