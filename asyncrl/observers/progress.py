"""What a person sees while a run goes on: one live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from asyncrl.monitoring.summary import UNKNOWN, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_BAR_WIDTHS = (8, 24)


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
        activity: what the run is doing, where the figures do not show it.
    """

    env_steps: int
    target_env_steps: int
    elapsed_s: float
    fps: float | None = None
    episode_return: float | None = None
    lag_mean: float | None = None
    lag_max: int | None = None
    remaining_s: float | None = None
    activity: str | None = None

    @property
    def share(self) -> float:
        """Share of the steps that are done, at most 1."""
        return min(1.0, self.env_steps / self.target_env_steps)

    @property
    def text(self) -> str:
        """One line with every figure."""
        return _join(self._parts)

    def text_within(self, width: int) -> str:
        """One line of at most `width` characters: what is least needed is left out until it fits."""
        parts = dict(self._parts)
        for name in ("lag", "elapsed", "fps", "return", "left"):
            if len(_join(parts.items())) <= width:
                break
            parts.pop(name, None)
        return _join(parts.items())[:width]

    @property
    def _parts(self) -> list[tuple[str, str]]:
        lag = UNKNOWN if self.lag_mean is None else f"{self.lag_mean:.1f} (max {self.lag_max})"
        parts = [
            ("steps", f"{self.env_steps:,} of {self.target_env_steps:,} steps ({100 * self.share:.1f} %)"),
            ("fps", f"{_number(self.fps, ',.0f')} steps/s"),
            ("return", f"return {_number(self.episode_return, ',.1f')}"),
            ("lag", f"lag {lag}"),
            ("elapsed", f"{duration(self.elapsed_s)} elapsed"),
            ("left", f"{duration(self.remaining_s)} left"),
        ]
        if self.activity is None:
            return parts
        known = [part for part in parts if UNKNOWN not in part[1].split()]  # the activity says why others are not
        return [known[0], ("activity", self.activity), *known[1:]]


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
    """Keeps one line at the bottom of the terminal up to date. It has no thread: `update` draws.

    The line never wraps: Rich would leave the upper rows of a wrapped line behind.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Draws on `console`, the terminal's if None."""
        from rich.console import Console

        self._console = console or Console()
        self._live: Live | None = None

    def update(self, status: Status) -> None:
        """Draws the line again."""
        from rich.live import Live

        line = self._line(status)
        if self._live is None:
            self._live = Live(line, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(line, refresh=True)

    def record(self, status: Status) -> None:
        """Draws the line again."""
        self.update(status)

    def say(self, text: str) -> None:
        """Prints the sentence above the line."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
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


def make_progress(quiet: bool, is_serial: bool = False) -> Progress:
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


def _join(parts: Iterable[tuple[str, str]]) -> str:
    return " | ".join(text for _, text in parts)


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
