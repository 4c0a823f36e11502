"""Progress of a run for a person: one live line on a terminal, otherwise a plain line every few seconds."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, TextIO

from asyncrl.monitoring.reports import EvaluationReport
from asyncrl.monitoring.status import Status
from asyncrl.monitoring.summary import Summary
from asyncrl.observers.observer import Observer, Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

Mode = Literal["live", "lines", "quiet"]

_BAR_WIDTHS = (8, 24)


class ProgressBar(Observer):
    """Shows what `python -m asyncrl.train` shows while a run trains: progress, evaluations and messages.

    The modes:
        live: one line at the bottom of the terminal, drawn again for each status.
        lines: a line every `report_every_s`, for log files, pipes and CI.
        quiet: messages only.
    """

    def __init__(
        self, mode: Mode | None = None, *, console: Console | None = None, stream: TextIO | None = None
    ) -> None:
        """Creates the observer.

        Args:
            mode: None chooses a mode when the run begins, by the setting `quiet` and by where standard output goes.
            console: terminal for the live line; standard output if None.
            stream: for lines and messages; standard output and standard error if None.
        """
        self._given_mode, self._mode = mode, mode or "quiet"
        self._console, self._stream = console, stream
        self._live: Live | None = None

    def on_start(self, run: Run) -> None:
        self._mode = self._given_mode or choose_mode(run.config.quiet, run.plan.serial_mode)

    def on_status(self, run: Run, status: Status) -> None:
        """Draws the live line again, or prints a line if the status belongs to a record."""
        if self._mode == "live":
            self._draw(status)
        elif self._mode == "lines" and status.is_of_record:
            print_line(status.text, self._stream or sys.stdout)

    def on_message(self, run: Run, text: str) -> None:
        """Prints the message: above the live line, otherwise to standard error."""
        if self._mode == "live":
            self._terminal().print(text, markup=False, highlight=False)
        else:
            print_line(text, self._stream or sys.stderr)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        if self._mode != "quiet":
            steps, mean, count = evaluation.env_steps, evaluation.mean_reward, evaluation.episodes
            which = f"policy {evaluation.policy_idx} " if run.plan.num_policies > 1 else ""
            self.on_message(run, f"evaluated {which}at {steps:,} steps: return {mean:,.1f} over {count} episodes")

    def on_end(self, run: Run, summary: Summary) -> None:
        """Leaves the last live line on the screen and restores the cursor."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _terminal(self) -> Console:
        from rich.console import Console

        self._console = self._console or Console()
        return self._console

    def _draw(self, status: Status) -> None:
        from rich.live import Live

        line = self._live_line(status)
        if self._live is None:
            self._live = Live(line, console=self._terminal(), auto_refresh=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def _live_line(self, status: Status) -> Text:
        """The figures, behind a bar if there is room. The line never wraps: Rich cannot erase a wrapped line."""
        from rich.text import Text

        console = self._terminal()
        width = console.width - 1  # a cursor behind the last column would be on the next row
        text = status.text_within(width)
        smallest, largest = _BAR_WIDTHS
        bar_width = min(largest, width - len(text) - 1)
        if bar_width < smallest:
            return Text(text, no_wrap=True, overflow="crop")
        filled = round(bar_width * status.share)
        done, rest = ("#", "-") if console.options.ascii_only else ("\u2501", "\u2500")
        return Text.assemble(
            (done * filled, "green"), (rest * (bar_width - filled), "dim"), f" {text}", no_wrap=True, overflow="crop"
        )


def choose_mode(quiet: bool, is_serial: bool = False) -> Mode:
    """Returns the mode that suits standard output.

    Args:
        quiet: the setting of this name.
        is_serial: whether the whole run is in this process, where a debugger may need the terminal for its prompt.
    """
    if quiet:
        return "quiet"
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not is_serial
    return "live" if can_redraw else "lines"


def print_line(text: str, stream: TextIO) -> None:
    """Prints one line. If the reader of a pipe has ended or the stream is closed, the run continues without it."""
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):
        return
