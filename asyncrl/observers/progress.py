"""Progress of a run for a person: a dashboard or one live line on a terminal, otherwise plain lines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Literal, TextIO, cast

from asyncrl.config.sections.output import Progress
from asyncrl.observers.keys import Keys, foreground_group
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.reports import EvaluationReport
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import Summary
from asyncrl.processes.reader import PatientStream, patient

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from asyncrl.observers.dashboard import Board

Mode = Literal["dashboard", "live", "lines", "quiet"]

_DRAWN: tuple[Mode, ...] = ("dashboard", "live")
_BAR_WIDTHS = (8, 24)
_BOARD_EVERY_S = 1.0
_KEY, _EXPLAIN_KEY = "d", "?"


class ProgressBar(Observer):
    """Shows what `asyncrl train` shows while a run trains: progress, evaluations and messages.

    The modes:
        dashboard: a table of the run's metrics, drawn again each second. The key d changes to the live line and back,
            the key ? to explanations of the metrics and back.
        live: one line at the bottom of the terminal, drawn again for each status. The key d changes to the dashboard.
        lines: a line every 5 s, or every `report_every_s`, for log files, pipes and CI.
        quiet: messages only.

    In the background of a terminal (`&`, or Ctrl-Z and `bg`) lines replace dashboard and live line. If drawing fails,
    lines replace them for the rest of the run, which continues.
    """

    def __init__(
        self, mode: Mode | None = None, *, console: Console | None = None, stream: TextIO | None = None
    ) -> None:
        """Creates the observer.

        Args:
            mode: None chooses a mode when the run begins, by the settings `quiet` and `progress` and by where standard
                output goes.
            console: terminal for dashboard and live line; standard output if None.
            stream: for lines and messages; standard output and standard error if None.
        """
        self._given_mode, self._mode = mode, mode or "quiet"
        self._console, self._stream = console, stream
        self._live: Live | None = None
        self._keys: Keys | None = None
        self._board: Board | None = None
        self._board_drawn_at = 0.0
        self._last_status: Status | None = None
        self._outputs: dict[TextIO, TextIO] = {}  # streams, and what writes to them without waiting for their readers

    def on_start(self, run: Run) -> None:
        self._mode = self._given_mode or choose_mode(run.config.progress, run.config.quiet, run.plan.serial_mode)
        if self._mode in _DRAWN:
            from asyncrl.observers.dashboard import Board, Usage

            self._keys = Keys()
            self._board = Board(run, Usage(uses_gpu=run.plan.device.startswith("cuda")))

    def on_record(self, run: Run, record: Record) -> None:
        if self._board is not None:
            self._board.add_record(record)

    def on_status(self, run: Run, status: Status) -> None:
        """Draws dashboard or live line again, or prints a line if one is due."""
        if self._board is not None:
            self._board.add_status(status)
        if self._mode in _DRAWN and self._is_in_foreground(run):
            try:
                self._answer_keys()
                self._draw(run, status)
                return
            except Exception as error:  # of the terminal or nvidia-smi: not worth the run
                self._give_up(run, error)
        if self._mode != "quiet" and status.is_line:
            print_line(status.text, self._output(self._stream or sys.stdout))

    def on_message(self, run: Run, text: str) -> None:
        """Prints the message: above dashboard or live line, otherwise to standard error."""
        if self._mode in _DRAWN and self._is_in_foreground(run):
            try:
                self._terminal().print(text, markup=False, highlight=False)
                return
            except Exception as error:
                self._give_up(run, error)
        print_line(text, self._output(self._stream or sys.stderr))

    def on_evaluation(self, run: Run, evaluation: EvaluationReport) -> None:
        if self._mode != "quiet":
            steps, mean, count = evaluation.env_steps, evaluation.mean_reward, evaluation.episodes
            which = f"policy {evaluation.policy_idx} " if run.plan.num_policies > 1 else ""
            self.on_message(run, f"evaluated {which}at {steps:,} steps: return {mean:,.1f} over {count} episodes")

    def on_end(self, run: Run, summary: Summary) -> None:
        """Leaves the last live line and the return's curve on the screen, and gives the terminal back as it was."""
        if self._live is not None and self._last_status is not None and self._is_in_foreground(run):
            from rich.console import Group

            with contextlib.suppress(Exception):  # the terminal is gone, or does not know the characters
                more = [] if self._board is None else self._board.at_end(self._terminal().options.ascii_only)
                self._live.update(Group(self._live_line(self._last_status), *more), refresh=True)
        self._release_terminal(run)
        for stream, output in self._outputs.items():
            if isinstance(output, PatientStream) and output is not stream:
                output.finish()
                if self._console is not None and self._console.file is output:
                    self._console.file = stream
        self._outputs = {}

    def _output(self, stream: TextIO) -> TextIO:
        """What writes to a stream without waiting for its reader."""
        if stream not in self._outputs:
            self._outputs[stream] = patient(stream)
        return self._outputs[stream]

    def _is_in_foreground(self, run: Run) -> bool:
        """Whether the terminal is the run's. If not, what was drawn is left, because a shell has written below it."""
        try:
            group = foreground_group(self._terminal().file.fileno())
        except (OSError, ValueError):  # not a file
            return True
        if group in (None, os.getpgrp()):
            return True
        self._stop_live(run, is_silent=True)
        return False

    def _give_up(self, run: Run, error: Exception) -> None:
        self._mode = "lines"
        self._release_terminal(run)
        self.on_message(run, f"warning: progress is shown as lines from here on: {type(error).__name__}: {error}")

    def _release_terminal(self, run: Run) -> None:
        """Gives the terminal back as it was, if it is still there."""
        if self._keys is not None:
            self._keys.close()
        if self._board is not None:
            self._board.usage.close()
        self._keys = self._board = None
        self._stop_live(run)

    def _stop_live(self, run: Run, is_silent: bool = False) -> None:
        if self._live is None:
            return
        live, self._live = self._live, None
        run.draws_on_terminal = False
        console = self._terminal()
        console.quiet = is_silent
        with contextlib.suppress(Exception):  # the same: it draws once more
            live.stop()
        console.quiet = False

    def _terminal(self) -> Console:
        from rich.console import Console

        self._console = self._console or Console()
        if not isinstance(self._console.file, PatientStream):
            self._console.file = cast(IO[str], self._output(cast(TextIO, self._console.file)))
        return self._console

    def _draw(self, run: Run, status: Status) -> None:
        from rich.live import Live

        console = self._terminal()
        self._last_status = status
        has_room = self._board is not None and _fits(console)
        hint = f" | {_KEY}: dashboard" if has_room and self._keys is not None else ""
        shown: RenderableType = self._live_line(status, hint)
        if self._mode == "dashboard" and self._board is not None and has_room:
            now = time.monotonic()
            if now - self._board_drawn_at < _BOARD_EVERY_S and not status.is_line:
                return
            self._board_drawn_at = now
            shown = self._board.render(console.width - 1, console.height - 1, console.options.ascii_only)
        if self._live is None:
            self._live = Live(shown, console=console, auto_refresh=False)
            self._live.start()
            console.show_cursor(True)  # a process that is killed or stopped (Ctrl-Z) cannot show it again
            run.draws_on_terminal = True
        self._live.update(shown, refresh=True)

    def _answer_keys(self) -> None:
        for key in self._keys.pressed() if self._keys is not None else "":
            if key == _KEY:
                self._mode = "live" if self._mode == "dashboard" else "dashboard"
            elif key == _EXPLAIN_KEY and self._mode == "dashboard" and self._board is not None:
                self._board.turn_page()
            self._board_drawn_at = 0.0

    def _live_line(self, status: Status, hint: str = "") -> Text:
        """The numbers and a hint, behind a bar if there is room. The line never wraps: Rich cannot erase more rows."""
        from asyncrl.observers.dashboard import with_bar

        console = self._terminal()
        width = console.width - 1  # a cursor behind the last column would be on the next row
        text = status.text_within(width - len(hint)) + hint
        smallest, largest = _BAR_WIDTHS
        bar_width = min(largest, width - len(text) - 1)
        if bar_width < smallest:
            return with_bar(text, 0, 0.0, is_ascii=True)
        return with_bar(f" {text}", bar_width, status.share, console.options.ascii_only)


def choose_mode(progress: Progress, quiet: bool, is_serial: bool = False) -> Mode:
    """Returns the mode that suits standard output.

    Args:
        progress: the setting of this name.
        quiet: the setting of this name.
        is_serial: whether the whole run is in this process, where a debugger may need the terminal for its prompt.
    """
    if quiet:
        return "quiet"
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if progress == "lines" or not can_redraw or (is_serial and progress == "auto"):
        return "lines"
    return "dashboard" if progress == "auto" else progress


def _fits(console: Console) -> bool:
    from asyncrl.observers.dashboard import LEAST_HEIGHT, LEAST_WIDTH

    return console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT


def print_line(text: str, stream: TextIO) -> None:
    """Prints one line. If the reader of a pipe has ended or the stream is closed, the run continues without it."""
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):
        return
