"""What a person sees while a run trains: one live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from asyncrl.monitoring.reports import EvaluationReport
from asyncrl.monitoring.status import Status
from asyncrl.monitoring.summary import Summary
from asyncrl.observers.observer import Observer, Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_BAR_WIDTHS = (8, 24)


class QuietProgress(Observer):
    """Shows no progress; what goes wrong is still said."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Prints to `stream`; to standard output and standard error if None."""
        self._stream = stream

    def on_message(self, run: Run, text: str) -> None:
        """Prints the sentence to standard error, or to the stream that was given."""
        self.print(text, self._stream or sys.stderr)

    @staticmethod
    def print(text: str, stream: TextIO) -> None:
        """Prints one line; if nobody reads it any more, the run continues."""
        try:
            print(text, file=stream, flush=True)
        except (OSError, ValueError):  # the reader of a pipe has ended, or the stream is closed
            return


class PlainProgress(QuietProgress):
    """Prints a line every `report_every_s`: for log files, pipes and CI."""

    def on_status(self, run: Run, status: Status) -> None:
        """Prints the line when a record is due."""
        if status.is_of_record:
            self.print(status.text, self._stream or sys.stdout)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """Says how well the policy does."""
        self.on_message(run, evaluated(evaluation))


class LiveProgress(Observer):
    """Keeps one line at the bottom of the terminal up to date. It has no thread: each status draws the line.

    The line never wraps: Rich would leave the upper rows of a wrapped line behind.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Draws on `console`, the terminal's if None."""
        from rich.console import Console

        self._console = console or Console()
        self._live: Live | None = None

    def on_status(self, run: Run, status: Status) -> None:
        """Draws the line again."""
        from rich.live import Live

        line = self._line(status)
        if self._live is None:
            self._live = Live(line, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def on_message(self, run: Run, text: str) -> None:
        """Prints the sentence above the line."""
        self._console.print(text, markup=False, highlight=False)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """Says how well the policy does."""
        self.on_message(run, evaluated(evaluation))

    def on_end(self, run: Run, summary: Summary) -> None:
        """Leaves the last line standing and gives the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, status: Status) -> Text:
        """A bar where there is room for one, and the figures."""
        from rich.text import Text

        width = self._console.width - 1  # a cursor behind the last column would be on the next row
        text = status.text_within(width)
        smallest, largest = _BAR_WIDTHS
        bar_width = min(largest, width - len(text) - 1)
        if bar_width < smallest:
            return Text(text, no_wrap=True, overflow="crop")
        filled = round(bar_width * status.share)
        done, rest = ("#", "-") if self._console.options.ascii_only else ("\u2501", "\u2500")
        return Text.assemble(
            (done * filled, "green"), (rest * (bar_width - filled), "dim"), f" {text}", no_wrap=True, overflow="crop"
        )


class ProgressBar(Observer):
    """Shows what `python -m asyncrl.train` shows while a run trains, and what goes wrong."""

    def __init__(self) -> None:
        """Chooses the form when the run begins."""
        self.shown: Observer = QuietProgress()

    def on_start(self, run: Run) -> None:
        """A live line on a terminal, else a line every `report_every_s`."""
        self.shown = make_progress(run.config.quiet, run.plan.serial_mode)

    def on_status(self, run: Run, status: Status) -> None:
        """Shows it."""
        self.shown.on_status(run, status)

    def on_message(self, run: Run, text: str) -> None:
        """Shows it."""
        self.shown.on_message(run, text)

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        """Shows it."""
        self.shown.on_evaluation(run, evaluation)

    def on_end(self, run: Run, summary: Summary) -> None:
        """Gives the terminal back."""
        self.shown.on_end(run, summary)


def make_progress(quiet: bool, is_serial: bool = False) -> Observer:
    """Returns what suits the place where standard output goes.

    Args:
        quiet: whether to show nothing.
        is_serial: whether all of the run is in this process, where a debugger may ask for the terminal: plain lines
            leave its prompt alone.
    """
    if quiet:
        return QuietProgress()
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not is_serial
    return LiveProgress() if can_redraw else PlainProgress()


def evaluated(evaluation: EvaluationReport) -> str:
    """What an evaluation found, in one sentence."""
    episodes = f"over {evaluation.episodes} episodes"
    return f"evaluated at {evaluation.env_steps:,} steps: return {evaluation.mean_reward:,.1f} {episodes}"
