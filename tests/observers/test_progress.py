import dataclasses
import io
import re

import pytest
from rich.console import Console

from asyncrl.observers.observer import Run
from asyncrl.observers.progress import ProgressBar
from asyncrl.observers.status import Status
from asyncrl.observers.summary import duration

STATUS = Status(
    env_steps=25_000, target_env_steps=100_000, elapsed_s=65.0, fps=1234.5, episode_return=-3.25, lag_mean=7.96,
    lag_max=16, remaining_s=3725.0,
)  # fmt: skip
OF_RECORD = dataclasses.replace(STATUS, is_line=True)
RUN = Run([])
FIGURES = ("25,000 of 100,000", "25.0 %", "1,234 steps/s", "return -3.2", "lag 8.0 (max 16)", "1:05 min elapsed")
FIGURES += ("1:02:05 h left",)


def live(width):
    """A line on a terminal of this width, and what is written there."""
    stream = io.StringIO()
    return ProgressBar(
        "live", console=Console(file=stream, force_terminal=True, width=width, color_system=None)
    ), stream


def test_a_plain_line_for_each_record_and_none_for_an_update():
    stream = io.StringIO()
    progress = ProgressBar("lines", stream=stream)
    progress.on_status(RUN, STATUS)
    progress.on_status(RUN, OF_RECORD)
    (line,) = stream.getvalue().splitlines()
    assert [figure for figure in FIGURES if figure not in line] == []


@pytest.mark.parametrize(
    ("activity", "text"),
    [
        (None, "0 of 100 steps (0.0 %) | - steps/s | return - | lag - | 2 s elapsed | - left"),
        ("starting processes", "0 of 100 steps (0.0 %) | starting processes | 2 s elapsed"),
    ],
)
def test_unknown_numbers_are_dashes_or_give_way_to_what_the_run_is_doing(activity, text):
    assert Status(env_steps=0, target_env_steps=100, elapsed_s=2.0, activity=activity).text == text


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
    progress, stream = live(200)
    progress.on_end(RUN, None)
    progress.on_status(RUN, OF_RECORD)
    progress.on_message(RUN, "kept [above] the line")
    progress.on_end(RUN, None)
    shown = stream.getvalue()
    assert [figure for figure in FIGURES if figure not in shown] == []
    assert 3 * shown.count("\u2501") == shown.count("\u2500") > 0, "a bar of 25 %"
    assert "kept [above] the line" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 140, 200])
@pytest.mark.parametrize("activity", [None, "stopping, update: 12 of 80 minibatches"])
def test_the_live_line_is_one_row_on_any_terminal(width, activity):
    progress, stream = live(width)
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


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00 min"), (3599.9, "1:00:00 h"), (-1, "0 s")])
def test_durations_are_rounded_before_they_are_split(seconds, text):
    assert duration(seconds) == text
