import dataclasses
import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from asyncrl.monitoring.status import Status
from asyncrl.monitoring.summary import duration
from asyncrl.observers.observer import Run
from asyncrl.observers.progress import ProgressBar, choose_mode

STATUS = Status(
    env_steps=25_000,
    target_env_steps=100_000,
    elapsed_s=65.0,
    fps=1234.5,
    episode_return=-3.25,
    lag_mean=7.96,
    lag_max=16,
    remaining_s=3725.0,
)
OF_RECORD = dataclasses.replace(STATUS, is_of_record=True)
RUN = Run([])
FIGURES = (
    "25,000 of 100,000",
    "25.0 %",
    "1,234 steps/s",
    "return -3.2",
    "lag 8.0 (max 16)",
    "1:05 min elapsed",
    "1:02:05 h left",
)


def test_a_plain_line_for_each_record_and_none_for_an_update():
    stream = io.StringIO()
    progress = ProgressBar("lines", stream=stream)
    progress.on_status(RUN, STATUS)
    progress.on_status(RUN, OF_RECORD)
    (line,) = stream.getvalue().splitlines()
    assert [figure for figure in FIGURES if figure not in line] == []


def test_what_is_not_known_yet_is_a_dash_and_not_a_number():
    text = Status(env_steps=0, target_env_steps=100, elapsed_s=2.0).text
    assert "- steps/s" in text
    assert "return -" in text
    assert text.endswith("2 s elapsed | - left")


def test_what_the_run_is_doing_takes_the_place_of_what_is_not_known():
    text = Status(env_steps=0, target_env_steps=100, elapsed_s=2.0, activity="starting processes").text
    assert text == "0 of 100 steps (0.0 %) | starting processes | 2 s elapsed"


def test_a_reader_that_went_away_does_not_stop_the_run():
    attempts = []

    class BrokenPipe(io.StringIO):
        def write(self, text):
            attempts.append(text)
            raise BrokenPipeError

    ProgressBar("lines", stream=BrokenPipe()).on_status(RUN, OF_RECORD)
    assert len(attempts) == 1


def test_quiet_shows_no_progress_but_says_what_goes_wrong(capsys):
    progress = ProgressBar("quiet")
    progress.on_status(RUN, STATUS)
    progress.on_status(RUN, OF_RECORD)
    assert capsys.readouterr() == ("", "")
    progress.on_message(RUN, "the disk is full")
    assert capsys.readouterr() == ("", "the disk is full\n")


def test_the_live_line_shows_every_figure_and_gives_the_cursor_back():
    stream = io.StringIO()
    progress = ProgressBar("live", console=Console(file=stream, force_terminal=True, width=200, color_system=None))
    progress.on_end(RUN, None)
    progress.on_status(RUN, OF_RECORD)
    progress.on_message(RUN, "kept [above] the line")
    progress.on_end(RUN, None)
    shown = stream.getvalue()
    assert [figure for figure in FIGURES if figure not in shown] == []
    assert "kept [above] the line" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("activity", [None, "stopping, update: 12 of 80 minibatches"])
def test_the_live_line_is_one_row_on_any_terminal(width, activity):
    stream = io.StringIO()
    progress = ProgressBar("live", console=Console(file=stream, force_terminal=True, width=width, color_system=None))
    status = dataclasses.replace(STATUS, activity=activity)
    progress.on_status(RUN, status)
    progress.on_status(RUN, status)
    progress.on_end(RUN, None)
    rows = [
        row for row in re.sub(r"\x1b\[[0-9?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").split("\n") if row
    ]
    assert len(set(rows)) == 1
    (row,) = set(rows)
    assert len(row) < width
    assert "25,000 of" in row
    assert (activity is None or activity in row) or width < 80
    assert ("h left" in row) or width < 80 or (width == 80 and activity is not None)
    assert "\x1b[1A" not in stream.getvalue(), "Rich has counted one row"


def test_the_bar_shows_the_share():
    stream = io.StringIO()
    ProgressBar("live", console=Console(file=stream, force_terminal=True, width=200, color_system=None)).on_status(
        RUN, STATUS
    )
    assert (stream.getvalue().count("\u2501"), stream.getvalue().count("\u2500")) == (6, 18)


def test_a_run_in_one_process_leaves_the_terminal_to_a_debugger(monkeypatch):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("TERM", "xterm")
    assert choose_mode("auto", quiet=False) == "dashboard"
    assert choose_mode("auto", quiet=False, is_serial=True) == "lines"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00 min"), (3599.9, "1:00:00 h"), (-1, "0 s")])
def test_durations_are_rounded_before_they_are_split(seconds, text):
    assert duration(seconds) == text
