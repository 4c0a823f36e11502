"""Charts as elements of an HTML page, in its colours."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asyncrl.analysis import drawing
from asyncrl.analysis.curves import Curve, mean_band

_INK, _SURFACE = "#010203", "#fdfcfb"  # stand for the page's colours in `inline_svg`
_PAGE_COLORS = {
    _INK: "currentColor",
    "#000000": "currentColor",
    "#0072b2": "var(--blue)",
    drawing.GRID: "var(--grid)",
    _SURFACE: "var(--surface)",
}


def page_color(number: int) -> str:
    """Returns the colour of a line in `inline_svg`, by its number."""
    return _PAGE_COLORS.get(drawing.color(number).lower(), drawing.color(number))


def inline_svg(draw: Callable[[Path], None]) -> str:
    """Returns a drawing as an `<svg>` element for an HTML page.

    `draw` writes it to a file, as the functions of `asyncrl.analysis.drawing` and of this module do. Text and axes
    have the page's text colour; the page defines the colours `--blue`, `--grid` and `--surface`. Texts are escaped, and
    no text is taken for a formula.
    """
    import matplotlib

    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    looks: Any = {**dict.fromkeys(names, _INK), "axes.facecolor": _SURFACE, "savefig.transparent": True}
    looks |= {"svg.fonttype": "none", "text.parse_math": False, "font.size": 12.5, "svg.hashsalt": "asyncrl"}
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(looks):
        path = Path(folder) / "figure.svg"
        draw(path)
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for drawn, of_page in _PAGE_COLORS.items():
        text = text.replace(drawn, of_page)
    return text


def draw_metric(groups: Sequence[tuple[int, Sequence[Curve]]], path: Path) -> None:
    """Draws one figure of several groups of runs without a legend: a line for each group, and its runs as thin lines.

    Args:
        groups: the number of each group, which is that of its colour, and the curves of its runs.
        path: the file.
    """
    figure = drawing.new_figure(5.0, 3.0)
    axes = figure.subplots()
    for number, curves in groups:
        band = mean_band(curves, ddof=1)
        if len(curves) > 1:
            for curve in curves:
                axes.plot(curve.positions, curve.values, color=drawing.color(number), lw=0.6, alpha=0.5)
        drawing.draw_band(axes, band, "", number)
    drawing.count_in_thousands(axes)
    axes.set_xlabel("environment steps")
    drawing.finish(axes)
    drawing.save(figure, path)
