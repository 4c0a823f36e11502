"""What a person sees while a run goes on: one live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_BAR_WIDTH = 24
_UNKNOWN = "-"


@dataclass(frozen=True)
class Status:
    """Where a run stands. What is not known yet is None.

    Attributes:
        env_steps: environment steps trained on.
        target_env_steps: steps at which the run ends.
        elapsed_s: seconds since the command was given.
        fps: environment steps trained a second.
        episode_return: mean return of the last episodes.
        lag_mean, lag_max: policy lag in versions.
        remaining_s: seconds until the run ends.
    """

    env_steps: int
    target_env_steps: int
    elapsed_s: float
    fps: float | None = None
    episode_return: float | None = None
    lag_mean: float | None = None
    lag_max: int | None = None
    remaining_s: float | None = None

    @property
    def share(self) -> float:
        """Share of the steps that are done, at most 1."""
        return min(1.0, self.env_steps / self.target_env_steps)

    @property
    def text(self) -> str:
        """One line with every figure."""
        lag = _UNKNOWN if self.lag_mean is None else f"{self.lag_mean:.1f} (max {self.lag_max})"
        return " | ".join(
            (
                f"{self.env_steps:,} of {self.target_env_steps:,} steps ({100 * self.share:.1f} %)",
                f"{_number(self.fps, ',.0f')} steps/s",
                f"return {_number(self.episode_return, ',.1f')}",
                f"lag {lag}",
                f"{duration(self.elapsed_s)} gone, {duration(self.remaining_s)} left",
            )
        )


class Progress(Protocol):
    """Shows where a run stands."""

    def update(self, status: Status) -> None:
        """Called often, about as often as reports arrive."""

    def record(self, status: Status) -> None:
        """Called once for each written record."""

    def say(self, text: str) -> None:
        """Shows one sentence, for example that a file could not be written."""

    def close(self) -> None:
        """Leaves the terminal as it was found."""


class PlainProgress:
    """Prints one line for each record: for log files, pipes and CI."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Prints to `stream`, standard output if None."""
        self._stream = stream

    def update(self, status: Status) -> None:
        """Prints nothing: a line for each report would be too many."""

    def record(self, status: Status) -> None:
        """Prints the line."""
        self._print(status.text, self._stream or sys.stdout)

    def say(self, text: str) -> None:
        """Prints the sentence to standard error, or to the stream that was given."""
        self._print(text, self._stream or sys.stderr)

    def close(self) -> None:
        """Nothing to restore."""

    @staticmethod
    def _print(text: str, stream: TextIO) -> None:
        try:
            print(text, file=stream, flush=True)
        except (OSError, ValueError):
            # The reader of a pipe went away, or the stream is closed: the run goes on unseen.
            return


class QuietProgress(PlainProgress):
    """Shows no progress; what goes wrong is still said."""

    def record(self, status: Status) -> None:
        """Prints nothing."""


class LiveProgress:
    """Keeps one line at the bottom of the terminal up to date. It has no thread: `update` draws."""

    def __init__(self, console: Console | None = None) -> None:
        """Draws on `console`, the terminal's if None."""
        from rich.console import Console

        self._console = console or Console()
        self._live: Live | None = None

    def update(self, status: Status) -> None:
        """Draws the line anew."""
        from rich.columns import Columns
        from rich.live import Live
        from rich.progress_bar import ProgressBar

        line = Columns([ProgressBar(total=1.0, completed=status.share, width=_BAR_WIDTH), status.text])
        if self._live is None:
            self._live = Live(line, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def record(self, status: Status) -> None:
        """Draws the line anew."""
        self.update(status)

    def say(self, text: str) -> None:
        """Prints the sentence above the line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leaves the last line standing and gives the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def make_progress(quiet: bool) -> Progress:
    """Returns what suits the place where standard output goes."""
    if quiet:
        return QuietProgress()
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return LiveProgress() if can_redraw else PlainProgress()


def duration(seconds: float | None) -> str:
    """Returns seconds as a person writes them: `45 s`, `3:07 min`, `2:03:07 h`."""
    if seconds is None:
        return _UNKNOWN
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)
