"""Progress of many runs: a table on a terminal, drawn again each second; elsewhere a line for each run now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.contrib.experiments.runs import PlannedRun, read_progress
from asyncrl.observers.progress import print_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_LINES_EVERY_S = 30.0
_HEADER = ("run", "state", "steps", "done", "steps/s", "train\nreturn", "eval\nreturn")
_FEWEST_ROWS = 3
_OTHER_ROWS = 7  # title, a header of two lines, the number of other runs, and messages
_OTHER_COLUMNS = 56
_FEWEST_LETTERS = 20


Row = tuple[PlannedRun, str]
"""A run, and what it is doing."""


class Board:
    """Shows rows and messages, the newest message last; a context."""

    def __init__(self) -> None:
        """Draws nothing yet; standard output decides how it will."""
        self._live: Live | None = None
        self._lines_at = time.monotonic() + _LINES_EVERY_S

    def say(self, text: str) -> None:
        """Prints a message, above the table if there is one."""
        if self._live is None:
            print_line(text, sys.stdout)
        else:
            self._live.console.print(text, markup=False, highlight=False)

    def show(self, title: str, rows: Sequence[Row]) -> None:
        """Draws the rows again, or prints them if the last time was long ago."""
        if self._live is not None:
            console = self._live.console
            self._live.update(_table(title, rows, console.width, console.height), refresh=True)
        elif time.monotonic() >= self._lines_at:
            self._lines_at = time.monotonic() + _LINES_EVERY_S
            for line in (title, *(_line(row) for row in rows)):
                print_line(line, sys.stdout)

    def __enter__(self) -> Board:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _table(title: str, rows: Sequence[Row], width: int, height: int) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in _HEADER:
        table.add_column(name, justify="left" if name in _HEADER[:2] else "right", no_wrap=True)
    shown = rows[: max(_FEWEST_ROWS, height - _OTHER_ROWS)]
    for row in shown:
        name, *others = _cells(row)
        table.add_row(_shortened(name, max(_FEWEST_LETTERS, width - _OTHER_COLUMNS)), *others)
    if len(shown) < len(rows):
        table.add_row(f"and {len(rows) - len(shown)} more")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    """The text of each column."""
    run, state = row
    now, target = read_progress(run.folder), run.config.train_for_env_steps
    metrics = ((now.fps, ",.0f"), (now.train_return, ",.1f"), (now.eval_return, ",.1f"))
    texts = ["-" if value is None else format(value, form) for value, form in metrics]
    return (run.name, state, f"{now.env_steps:,}", f"{min(1.0, now.env_steps / target):.0%}", *texts)


def _line(row: Row) -> str:
    name, state, steps, share, fps, train_return, eval_return = _cells(row)
    returns = f"training return {train_return}, evaluation return {eval_return}"
    return f"  {name}: {state}, {steps} steps ({share}), {fps} steps/s, {returns}"


def _shortened(name: str, letters: int) -> str:
    """A name without letters in its middle: its end has the seed."""
    half = (letters - 1) // 2
    return name if len(name) <= letters else f"{name[:half]}…{name[-half:]}"
