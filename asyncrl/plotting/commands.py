"""From options to files: reads the runs, computes, draws, and tells what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.plotting import comparison, drawing, speedup, trial
from asyncrl.plotting.options import Options
from asyncrl.plotting.runs import Run, read_runs

Say = Callable[[str], None]


def run_command(options: Options, say: Say) -> dict[str, Any]:
    """Does what the command line asks for.

    Args:
        options: the command line.
        say: shows one line to the user.

    Returns:
        The numbers behind the figures and the files that show them, for JSON.

    Raises:
        UsageError: matplotlib is missing, a run cannot be read or lacks what the figure needs, a file not written.
    """
    drawing.check_can_draw()
    runs = read_runs(options.runs)
    if options.command == "trial":
        return _draw_trials(runs, options, say)
    if options.command == "compare":
        return _draw_comparison(runs, options, say)
    return _draw_speedup(runs, options, say)


def _draw_trials(runs: list[Run], options: Options, say: Say) -> dict[str, Any]:
    # All are computed before the first is drawn: a run without returns leaves no half of the work.
    trials = [trial.make_trial(run, options.window) for run in runs]
    found = []
    for run, item in zip(runs, trials, strict=True):
        path = _path(options, run)
        _write(path, partial(drawing.draw_trial, item), say)
        for note in trial.notes(run, item):
            say(note)
        found.append({**item.to_json(), "file": str(path)})
    return {"trials": found}


def _draw_comparison(runs: list[Run], options: Options, say: Say) -> dict[str, Any]:
    result = comparison.compare(runs, options.x, options.metric, options.group)
    for line in comparison.summary_lines(result):
        say(line)
    path = _path(options, runs[0])
    _write(path, partial(drawing.draw_comparison, result), say)
    return {**result.to_json(), "file": str(path)}


def _draw_speedup(runs: list[Run], options: Options, say: Say) -> dict[str, Any]:
    unit = speedup.unit_of(runs)
    result = speedup.measure_speedup(speedup.read_paces(runs), unit)
    differing = speedup.unexpected_differences(runs)
    if differing:
        say(f"warning: Besides the number of {unit}s, the runs differ in {', '.join(differing)}.")
    say(result.table())
    path = _path(options, runs[0])
    _write(path, partial(drawing.draw_speedup, result), say)
    return {**result.to_json(), "file": str(path)}


def _path(options: Options, run: Run) -> Path:
    return run.path / "plots" / f"{options.command}.png" if options.out is None else options.out


def _write(path: Path, draw: Callable[[Path], None], say: Say) -> None:
    existed = path.exists()
    draw(path)
    say(f"wrote {path}" + (" (replaced)" if existed else ""))
