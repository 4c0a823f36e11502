"""Draws the dashboard of a run as an SVG picture, from the records in its folder.

    python scripts/dashboard_picture.py train_dir/NAME docs/images/dashboard.svg [--width=120] [--height=36]

The records have the time of each role's phases only if the run has `--profile=True`.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import read_saved_values
from asyncrl.observers.dashboard import Board, Usage
from asyncrl.observers.observer import Run
from asyncrl.observers.reports import Phase
from asyncrl.observers.status import Record, Status


class RecordedUsage(Usage):
    """The use of the processor that a record has; the dashboard itself measures more."""

    def __init__(self, cores: int) -> None:
        super().__init__(uses_gpu=False)
        self.cores, self.in_use = cores, 0.0

    def rows(self) -> list[tuple[str, str]]:
        return [("cores in use", f"{self.in_use:.1f} of {self.cores}")]


def draw(folder: Path, path: Path, width: int = 120, height: int = 36) -> None:
    """Writes the picture of the dashboard at the last record of a run but one: the last covers a part of an interval.

    Args:
        folder: the run's folder.
        path: the SVG file.
        width: columns of the terminal.
        height: rows of the terminal.
    """
    cores = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["machine"]["usable_cores"]
    run = Run([])
    run.config = TrainConfig.from_saved(read_saved_values(folder / "config.yaml"))
    run.plan, run.folder = resolve(run.config, Machine(cores)), folder
    usage = RecordedUsage(cores)
    board = Board(run, usage)
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:-1]:
        scalars = {name: value for name, value in json.loads(line).items() if value is not None}
        record = Record(scalars.pop("env_steps"), scalars)
        fps, target = scalars.get("time/fps"), run.config.train_for_env_steps
        if fps is not None:
            status = Status(record.env_steps, target, scalars["time/time_elapsed"], fps, is_line=True)
            board.add_status(dataclasses.replace(status, remaining_s=(target - record.env_steps) / fps))
            usage.in_use = scalars["perf/cores_in_use"]
            shares = {
                tuple(name.split("/")[1:]): value for name, value in scalars.items() if name.startswith("profile/")
            }
            run.phase_shares = {(role, Phase(phase)): value for (role, phase), value in shares.items()}
        board.add_record(record)
    console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True)
    console.print(board.render(width - 1, height - 1))
    console.save_svg(str(path), title="asyncrl")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--width", type=int, default=120)
    parser.add_argument("--height", type=int, default=36)
    draw(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
