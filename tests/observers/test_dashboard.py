"""The dashboard: what it shows at which size, when it is chosen, its key, and the terminal that it gives back."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.observers import dashboard
from asyncrl.observers.charts import Point, curve, number, resampled, sparkline
from asyncrl.observers.dashboard import Board, Usage
from asyncrl.observers.keys import Keys
from asyncrl.observers.metrics import METRICS, PHASES
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.progress import ProgressBar, choose_mode
from asyncrl.observers.reports import Phase
from asyncrl.observers.status import Record, Status

STATUS = Status(env_steps=25_000, target_env_steps=100_000, elapsed_s=65.0, fps=1234.5, remaining_s=195.0, is_line=True)
SCALARS = {
    "rollout/ep_rew_mean": 123.4,
    "rollout/ep_len_mean": 88.0,
    "time/time_elapsed": 65.0,
    "train/value_loss": 0.0625,
    "train/approx_kl": 0.00712,
    "lag/mean": 17.3,
    "perf/env_failures": 2.0,
    "perf/restarts": 0.0,
    "episode_extra_stats/goals": 3.25,
}
SIZES = [(80, 24), (200, 50)]


def make_run(tmp_path: Path, **settings: Any) -> Run:
    run = Run([])
    run.config = TrainConfig(env="CartPole-v1", **settings)
    run.plan = resolve(run.config, Machine(cores=2))
    run.folder = tmp_path / "my_run"
    run.phase_shares = {
        ("rollout", Phase.STEP): 0.62,
        ("rollout", Phase.WAIT_SLOTS): 0.38,
        ("learner", Phase.TRAIN): 1.0,
    }
    return run


class FixedUsage(Usage):
    def rows(self) -> list[tuple[str, str]]:
        return [("cores in use", "1.7 of 2"), ("memory", "0.9 GiB")]


def drawn(board: Board, width: int, height: int) -> list[str]:
    """The rows of a terminal of this size, without colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, color_system=None, legacy_windows=False)
    console.print(board.render(width - 1, height - 1))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("size", SIZES)
def test_it_shows_the_figures_of_the_run_and_fits_the_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    board = Board(make_run(tmp_path), FixedUsage(uses_gpu=False))
    board.add_status(STATUS)
    board.add_record(Record(20_000, {**SCALARS, "rollout/ep_rew_mean": 100.0, "time/time_elapsed": 45.0}))
    board.add_record(Record(25_000, SCALARS))
    board.add_record(Record(25_000, {"eval/mean_reward": 5.0}))  # an evaluation's record has no other figures
    rows = drawn(board, *size)
    assert len(rows) < size[1] and max(map(len, rows)) < size[0]
    text = "\n".join(rows)
    expected = (
        *("CartPole-v1, ppo, my_run", "25,000 of 100,000 steps (25.0 %)", "1:05 min elapsed", "3:15 min left"),
        *("1,234 steps/s", "123.4", "+23.4 in 20 s", "88.0", "+0 in 20 s"),
        *("value loss", "0.062", "KL divergence", "0.007", "lag, versions", "17.3"),
        *("rollout step", "62%", "rollout wait for slots", "38%", "learner train", "100%"),
        *("goals", "3.2", "environment failures", "1.7 of 2", "0.9 GiB"),
    )
    assert [part for part in expected if part not in text] == []
    assert "restarts" not in text, "what did not happen takes no row"


@pytest.mark.parametrize("size", SIZES)
def test_each_of_several_policies_has_a_row(tmp_path: Path, size: tuple[int, int]) -> None:
    board = Board(make_run(tmp_path, num_policies=3), FixedUsage(uses_gpu=False))
    board.add_status(STATUS)
    of_policies = {f"policy_{idx}/rollout/ep_rew_mean": 10.5 + idx for idx in range(3)}
    losses = {"policy_1/train/value_loss": 0.125, "policy_2/train/approx_kl": 0.0345}
    board.add_record(Record(25_000, {**SCALARS, **of_policies, **losses}))
    rows = drawn(board, *size)
    assert len(rows) < size[1]
    first = next(idx for idx, row in enumerate(rows) if row.startswith("policy "))
    assert rows[first].split() == ["policy", "return", "value", "loss", "KL"]
    assert [row.split() for row in rows[first + 1 : first + 4]] == [
        ["0", "10.5", "-", "-"], ["1", "11.5", "0.125", "-"], ["2", "12.5", "-", "0.035"],
    ]  # fmt: skip


CROWDED = {
    **SCALARS,
    **{f"train/{name}": 0.5 for name in ("policy_gradient_loss", "clip_fraction", "entropy", "std", "grad_norm")},
    **{f"episode_extra_stats/own_{idx}": float(idx) for idx in range(30)},
}


@pytest.mark.parametrize("num_policies", [1, 2, 40])
@pytest.mark.parametrize("height", [20, 24, 50])
def test_no_block_takes_all_the_room_of_the_others(tmp_path: Path, num_policies: int, height: int) -> None:
    run = make_run(tmp_path, num_policies=num_policies)
    phases = (Phase.STEP, Phase.COPY, Phase.FORWARD, Phase.WAIT_SLOTS)
    run.phase_shares = {(role, phase): 0.25 for role in ("rollout", "inference", "learner") for phase in phases}
    board = Board(run, FixedUsage(uses_gpu=False))
    board.add_status(STATUS)
    of_policies = {f"policy_{idx}/rollout/ep_rew_mean": 1.0 for idx in range(num_policies) if num_policies > 1}
    board.add_record(Record(25_000, {**CROWDED, **of_policies}))
    rows = drawn(board, 80, height)
    assert len(rows) < height
    text = "\n".join(rows)
    if height < 24 and num_policies > 1:
        return  # the smallest terminal has no room for every block beside policies
    assert ("more" in text) == (num_policies == 40)
    expected = ("rollout", "policy loss", "goals", "environment failures", "cores in use")
    assert [part for part in expected if part not in text] == []
    assert num_policies > 1 or height < 24 or "learner" in text


def test_before_the_first_record_it_says_what_the_run_does(tmp_path: Path) -> None:
    board = Board(make_run(tmp_path), FixedUsage(uses_gpu=False))
    assert "starting" in "\n".join(drawn(board, 80, 24))
    board.add_status(Status(env_steps=0, target_env_steps=100, elapsed_s=2.0, activity="collecting: 5 of 64 steps"))
    rows = drawn(board, 80, 24)
    assert "collecting: 5 of 64 steps" in rows[1] and " - " not in "".join(rows[1:]), "no empty number"
    for row in ("rollout workers  2, each with", "inference        in the rollout", "learner          on cpu"):
        assert any(each.startswith(row) for each in rows)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"serial_mode": True}, ["this process", "first metrics"]),
        ({"algo": "a3c"}, ["rollout workers", "learners", "first metrics"]),
        ({"inference_mode": "central"}, ["rollout workers", "inference workers", "learner", "first metrics"]),
    ],
)
def test_it_says_which_processes_start(tmp_path: Path, settings: dict[str, Any], expected: list[str]) -> None:
    board = Board(make_run(tmp_path, **settings), FixedUsage(uses_gpu=False))
    assert [name for name, _ in board._starting()] == expected


def with_returns(board: Board) -> Board:
    """A board after a few records of a run whose return rises."""
    board.add_status(STATUS)
    for idx in range(1, 6):
        own = {"rollout/ep_rew_mean": 100.0 * idx, "time/time_elapsed": 5.0 * idx}
        board.add_record(Record(5_000 * idx, {**SCALARS, **own}))
    return board


def test_a_tall_terminal_has_the_return_as_a_curve_with_labelled_axes(tmp_path: Path) -> None:
    board = with_returns(Board(make_run(tmp_path), FixedUsage(uses_gpu=False)))
    rows = drawn(board, 160, 45)
    assert len(rows) < 45 and max(map(len, rows)) < 160
    start = rows.index(METRICS["rollout/ep_rew_mean"])
    assert [row.split()[0] for row in rows[start:] if "┤" in row] == ["500.0", "300.0", "100.0"]
    axis = next(idx for idx, row in enumerate(rows) if "└" in row)
    assert axis - start > 15 and rows[axis + 1].split() == ["5,000", "25,000", "steps"]
    assert not any("┤" in row for row in drawn(board, 80, 24))
    board.add_record(Record(10_000, {**SCALARS, "rollout/ep_rew_mean": 7.0, "time/time_elapsed": 40.0}))
    rows = drawn(board, 160, 45)
    assert [row.split()[0] for row in rows if "┤" in row] == ["100.0", "53.5", "7.0"], "it resumed at step 5,000"


def test_a_long_run_keeps_fewer_of_its_older_returns(tmp_path: Path) -> None:
    board = Board(make_run(tmp_path), FixedUsage(uses_gpu=False))
    for idx in range(10_000):
        board.add_record(Record(idx, {"rollout/ep_rew_mean": float(idx), "time/time_elapsed": float(idx)}))
    points = [point.env_steps for point in board._points["rollout/ep_rew_mean"]]
    assert len(points) <= 4096 and points[0] == 0 and points[-240:] == [*range(9_760, 10_000)]
    assert max(later - earlier for earlier, later in pairwise(points)) <= 32


def test_a_label_and_its_number_stay_together(tmp_path: Path) -> None:
    board = with_returns(Board(make_run(tmp_path), FixedUsage(uses_gpu=False)))
    for size in SIZES:
        text = "\n".join(drawn(board, *size))
        gaps = [re.search(pattern, text) for pattern in (r"value loss( +)0\.062", r"return( +)500", r"memory( +)0\.9")]
        assert all(gap is not None and len(gap[1]) <= 14 for gap in gaps), size


@pytest.mark.parametrize("size", SIZES)
def test_a_key_explains_every_number_on_pages_that_fit(tmp_path: Path, size: tuple[int, int]) -> None:
    run = make_run(tmp_path)
    board = Board(run, FixedUsage(uses_gpu=False))
    board.add_status(STATUS)
    board.add_record(Record(25_000, {**SCALARS, "train/clip_fraction": 0.1, "train/explained_variance": 0.5}))
    table, pages = drawn(board, *size), []
    board.turn_page()
    while (rows := drawn(board, *size)) != table:
        assert len(rows) < size[1] and max(map(len, rows)) < size[0]
        pages.append("\n".join(rows))
        board.turn_page()
    assert len(pages) == (1 if size[1] > 24 else 2) and "?: back" in pages[-1] and "?: explain" in table[0]
    shown = " ".join(" ".join(pages).split())
    names = ("time/fps", "rollout/ep_rew_mean", "train/approx_kl", "train/clip_fraction", "lag/mean")
    for meaning in (*(METRICS[name] for name in names), PHASES["wait_for_slots"], METRICS["perf/env_failures"]):
        assert meaning in shown
    for title in ("speed", "lag, versions", "wait for slots", "explained variance", "goals", "cores in use", "memory"):
        assert title in shown
    assert METRICS["perf/restarts"] not in shown


def test_every_phase_is_explained() -> None:
    assert set(PHASES) == {phase.value for phase in Phase}


def test_a_curve_is_drawn_as_bars_between_its_axes() -> None:
    points = [Point(0, 0.0, 0.0), Point(200, 9.0, 15.0)]
    assert curve(points, 9, 4) == [
        ("15.0 ┤", " \u2581\u2588"),
        ("   0 ┤", "\u2581\u2588\u2588"),
        ("     └───", ""),
        ("      0200 steps", ""),
    ]
    assert curve([Point(0, 0.0, 2.0), Point(9, 1.0, 2.0)], 30, 4)[:2] == [("2.0 ┤", " " * 25), ("2.0 ┤", "\u2581" * 25)]
    assert resampled(points, 3) == [0.0, 7.5, 15.0]


def test_bars_and_numbers() -> None:
    assert sparkline([0.0, 7.0, 3.5], 10) == "\u2581\u2588\u2585"
    assert sparkline([0.0, 1.0, 0.0], 2, is_ascii=True) == "@."
    assert sparkline([2.0, float("nan"), 2.0], 10, is_ascii=True) == ".."
    assert sparkline([1.0], 0) == sparkline([], 5) == ""
    assert [number(value) for value in (None, 0.0, 0.25, -0.00001, 12.345, 123456.7)] == [
        "-", "0", "0.250", "-1.0e-05", "12.3", "123,457",
    ]  # fmt: skip


def test_usage_counts_this_process_and_its_children_and_reads_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 87, 2048, 81920'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(Usage, "EVERY_S", 0.0)
    usage = Usage(uses_gpu=True)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert int(dict(usage.rows())["processes"]) >= 2
        deadline = time.monotonic() + 20.0
        while "GPU 0" not in dict(usage.rows()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert dict(usage.rows())["GPU 0"] == "87 %, 2.0 of 80.0 GiB"
        assert " of " in dict(usage.rows())["cores in use"]
        tool.write_text("#!/bin/sh\necho '0, [N/A], [N/A], [N/A]'\n")  # a part of a GPU (MIG)
        while "- %" not in dict(usage.rows())["GPU 0"] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert dict(usage.rows())["GPU 0"] == "- %, - of - GiB"
    finally:
        child.communicate(b"\n")
        usage.close()


def test_a_query_that_no_signal_ends_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_END_OF_QUERY_S", 0.01)
    usage = Usage(uses_gpu=True)
    usage._query = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True)
    query = usage._query
    monkeypatch.setattr(query, "kill", lambda: None)  # as if it hung in the driver
    usage.close()
    assert query.poll() is None
    monkeypatch.undo()
    query.kill()
    query.communicate()


@pytest.mark.parametrize(
    ("progress", "case", "expected"),
    [
        ("auto", {}, "dashboard"),
        ("auto", {"is_serial": True}, "lines"),
        ("dashboard", {"is_serial": True}, "dashboard"),
        ("live", {}, "live"),
        ("lines", {}, "lines"),
        ("dashboard", {"is_terminal": False}, "lines"),
        ("live", {"term": "dumb"}, "lines"),
        ("dashboard", {"quiet": True}, "quiet"),
    ],
)
def test_where_which_progress_is_shown(
    monkeypatch: pytest.MonkeyPatch, progress: Any, case: dict[str, Any], expected: str
) -> None:
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: case.get("is_terminal", True)))
    monkeypatch.setenv("TERM", case.get("term", "xterm"))
    assert choose_mode(progress, case.get("quiet", False), case.get("is_serial", False)) == expected


def started(run: Run, stream: io.StringIO, width: int = 100, lines: io.StringIO | None = None) -> ProgressBar:
    """The dashboard of a run that has begun, on a terminal of this width with 30 rows."""
    console = Console(file=stream, force_terminal=True, width=width, height=30, color_system=None)
    progress = ProgressBar("dashboard", console=console, stream=lines)
    run.add(progress)
    run.notify(Observer.on_start)
    return progress


def shown_after(run: Run, progress: ProgressBar, stream: io.StringIO, keys: str = "") -> str:
    """What is drawn for another status, after some keys."""
    progress._keys = SimpleNamespace(pressed=lambda: keys, close=lambda: None)  # type: ignore[assignment]
    start = len(stream.getvalue())
    progress.on_status(run, STATUS)
    return stream.getvalue()[start:]


def test_the_key_changes_to_the_line_and_back_and_the_line_remains(tmp_path: Path) -> None:
    stream, run = io.StringIO(), make_run(tmp_path)
    progress = started(run, stream)
    progress.on_record(run, Record(25_000, SCALARS))
    assert "KL divergence" in shown_after(run, progress, stream) and run.draws_on_terminal
    line = shown_after(run, progress, stream, "d")
    assert "KL divergence" not in line and "25,000 of" in line and "d: dashboard" in line
    assert "KL divergence" in shown_after(run, progress, stream, "xd")
    assert "KL divergence" in shown_after(run, progress, stream, "dd")
    assert "mean KL divergence of the updated policy" in shown_after(run, progress, stream, "?")
    assert "mean KL divergence of the updated policy" not in shown_after(run, progress, stream, "?")
    progress.on_record(run, Record(26_000, {**SCALARS, "rollout/ep_rew_mean": 150.0}))
    progress._keys = None
    before = len(stream.getvalue())
    progress.on_status(run, dataclasses.replace(STATUS, is_line=False))
    assert len(stream.getvalue()) == before, "it was drawn a moment ago"
    start = len(stream.getvalue())
    progress.on_end(run, SimpleNamespace())  # type: ignore[arg-type]
    last = stream.getvalue()[start:]
    assert "25,000 of 100,000 steps" in last and "KL divergence" not in last and "d: dashboard" not in last
    assert "return 123.4 \u2581\u2588 150.0" in last
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
    assert not run.draws_on_terminal


def test_a_small_terminal_has_the_line(tmp_path: Path) -> None:
    stream, run = io.StringIO(), make_run(tmp_path)
    progress = started(run, stream, width=79)
    progress.on_record(run, Record(25_000, SCALARS))
    shown = shown_after(run, progress, stream)
    assert "25,000 of" in shown and "KL divergence" not in shown
    progress.on_end(run, SimpleNamespace())  # type: ignore[arg-type]


def test_a_dashboard_that_fails_becomes_lines_and_the_run_continues(tmp_path: Path) -> None:
    screen, lines, run = io.StringIO(), io.StringIO(), make_run(tmp_path)
    progress = started(run, screen, lines=lines)
    run.notify(Observer.on_status, STATUS)
    assert progress._board is not None and run.draws_on_terminal
    progress._board.render = lambda *size: 1 / 0  # type: ignore[assignment, return-value, method-assign]
    run.notify(Observer.on_status, STATUS)
    run.notify(Observer.on_status, STATUS)
    run.notify(Observer.on_message, "the disk is full")
    run.notify(Observer.on_end, SimpleNamespace())  # type: ignore[arg-type]
    assert run.failure is None and not run.is_stopping and not run.draws_on_terminal
    warning, *rest = lines.getvalue().splitlines()
    assert warning.startswith("warning: progress is shown as lines from here on: ZeroDivisionError")
    assert rest == [STATUS.text, STATUS.text, "the disk is full"]


class Ascii(io.StringIO):
    """A terminal that does not know the characters of a table."""

    def write(self, text: str) -> int:
        text.encode("ascii")
        return super().write(text)


def test_a_terminal_that_stops_taking_characters_does_not_end_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    progress = started(run, io.StringIO())
    run.notify(Observer.on_status, STATUS)
    assert run.draws_on_terminal
    progress._console.file = Ascii()
    run.notify(Observer.on_end, SimpleNamespace())  # type: ignore[arg-type]
    assert run.failure is None and not run.is_stopping and not run.draws_on_terminal


def on_terminal(
    work: Callable[[], None], is_in_background: bool = False, meanwhile: Callable[[int], None] = lambda _: None
) -> tuple[str, bool]:
    """What a process writes to a terminal that it controls, and whether the terminal reads by line afterwards."""
    process_id, terminal = pty.fork()
    if process_id == 0:
        try:
            os.environ.update(TERM="xterm", COLUMNS="100", LINES="30")
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(idx, "w" if idx else "r", closefd=False) for idx in range(3))
            if is_in_background and os.fork() > 0:
                os.wait()
                os._exit(0)
            if is_in_background:
                os.setpgid(0, 0)
            work()
            sys.stdout.flush()
        finally:
            os._exit(0)
    try:
        meanwhile(terminal)
        written = b""
        with contextlib.suppress(OSError):  # the end of a terminal, on Linux
            while more := os.read(terminal, 65536):
                written += more
        os.waitpid(process_id, 0)
        return written.decode(), is_by_line(terminal)
    finally:
        os.close(terminal)


def show_progress(case: str, folder: Path) -> None:
    run, progress = make_run(folder), ProgressBar()
    run.add(progress)
    run.notify(Observer.on_start)
    run.notify(Observer.on_record, Record(25_000, SCALARS))
    run.notify(Observer.on_status, STATUS)
    if case == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "raises":
        progress._board.render = None  # type: ignore[assignment, union-attr, method-assign]
        run.notify(Observer.on_status, STATUS)
    run.notify(Observer.on_end, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["ends", "raises", "killed"])
def test_the_terminal_has_its_cursor_however_the_run_ends_and_its_echo_unless_it_is_killed(
    case: str, tmp_path: Path
) -> None:
    written, is_by_line_again = on_terminal(lambda: show_progress(case, tmp_path))
    assert "KL divergence" in written, written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert is_by_line_again or case == "killed"  # a shell restores the modes of the terminal after a killed command


def test_a_run_in_the_background_writes_lines_and_no_control_sequences(tmp_path: Path) -> None:
    written, is_still_by_line = on_terminal(lambda: show_progress("ends", tmp_path), is_in_background=True)
    assert written.splitlines() == [STATUS.text] and is_still_by_line


def is_by_line(descriptor: int) -> bool:
    return bool(termios.tcgetattr(descriptor)[3] & termios.ICANON and termios.tcgetattr(descriptor)[3] & termios.ECHO)


@pytest.mark.parametrize("is_in_background", [False, True])
def test_keys_are_read_without_enter_and_only_in_the_foreground(is_in_background: bool) -> None:
    reading, typed = os.pipe()

    def read_keys() -> None:
        keys = Keys(0)
        print("switched", keys.pressed(), flush=True)
        os.read(reading, 1)
        print("pressed", repr(keys.pressed()), flush=True)
        keys.close()
        print("not stopped")

    def press(terminal: int) -> None:
        assert os.read(terminal, 100) == b"switched \r\n"
        assert is_by_line(terminal) is is_in_background
        os.write(terminal, b"dx\n" if is_in_background else b"dx")
        os.write(typed, b".")

    written, is_by_line_again = on_terminal(read_keys, is_in_background, press)
    assert f"pressed {'' if is_in_background else 'dx'!r}\r\nnot stopped" in written and is_by_line_again
    os.close(reading)
    os.close(typed)


def test_without_a_terminal_nothing_is_read() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"d")
        keys = Keys(reading)
        assert keys.pressed() == ""
        keys.close()
        assert os.read(reading, 1) == b"d"
    finally:
        os.close(reading)
        os.close(writing)
