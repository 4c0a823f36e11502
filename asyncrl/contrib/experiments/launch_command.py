"""`asyncrl launch`: makes the runs of a grid in one folder, several at a time, and shows one table.

    asyncrl launch grid.yaml [--slots=4] [--retries=2]
    asyncrl launch grid.yaml --write=slurm|kubernetes    (writes a job file and starts nothing)

After a stop, the same command continues: finished runs are not repeated, others resume from their checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, NonNegativeInt, PositiveInt

from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.config.value_types import GivenPath
from asyncrl.contrib.experiments.board import Board
from asyncrl.contrib.experiments.grid import read_grid
from asyncrl.contrib.experiments.job_files import FILE_NAMES, Format, job_file
from asyncrl.contrib.experiments.launch import IfChanged, Launch, LaunchedRun
from asyncrl.processes.reader import start_dropping_unread_output


class _Options(BaseModel):
    grids: tuple[Path, ...]
    slots: PositiveInt | None = option(
        None,
        "runs at the same time, each with its share of the cores [default: as many as have a core for each of their "
        "threads]",
    )
    retries: NonNegativeInt = option(2, "how often a run that failed is resumed [default 2]")
    changed: Literal["refuse", "repeat", "resume"] = option(
        "refuse",
        "what to do with runs that were made with other settings: refuse to start; repeat them, and keep the old ones "
        "as NAME_old; or resume them with the new settings [default refuse]",
    )
    train_dir: GivenPath | None = option(None, "folder of all runs [default: that of the file, or train_dir/FILE]")
    table: bool = option(False, "show the table of what was made and start nothing")
    write: Format | None = option(
        None, "write a job file for this kind of cluster, with one task for each run, and start nothing"
    )
    out: GivenPath | None = option(
        None, "with --write: the file, which is replaced if it exists [default a new launch.sbatch or launch.yaml]"
    )


class _LaunchCommand(Command[_Options]):
    """Its exit code is 0 if all runs are finished, and 1 if some failed."""

    usage = "asyncrl launch GRID.yaml"
    description = (
        "Make the runs of a grid (a YAML file of settings, lists of them, and seeds) in one folder, several at a time, "
        "and show one table. After a stop the same command continues: finished runs are not repeated, others resume."
    )
    examples = (
        "asyncrl launch grid.yaml --slots=4",
        "asyncrl launch grid.yaml --write=slurm",
    )
    model = _Options
    words = "grids"
    if_stopped = "Stopped. The same command continues."

    def separate_words(self, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        num_grids = 1 if arguments and not arguments[0].startswith("--") else 0
        return arguments[:num_grids], arguments[num_grids:]

    def problems(self, given: Mapping[str, Any], options: _Options | None) -> Iterator[str]:
        if not given["grids"]:
            yield "No grid was given: the first argument is its YAML file, as in asyncrl launch grid.yaml."

    def run(self, options: _Options) -> int:
        grid = read_grid(options.grids[0], options.train_dir)
        if_changed: IfChanged = "show" if options.table else options.changed
        launch = Launch(grid, num_core_sets=options.slots, retries=options.retries, if_changed=if_changed)
        if options.write is not None:
            return _write_job_file(launch, options, options.write)
        if options.table:
            print(launch.table())
            return 0
        start_dropping_unread_output()
        print(f"{len(launch.runs)} runs in {grid.train_dir}: {_counts(launch.runs)}", flush=True)
        with Board() as board:

            def show(runs: Sequence[LaunchedRun]) -> None:
                shown = [(each.run, each.state) for each in runs if each.state in ("training", "evaluating", "failed")]
                board.show(_counts(runs), shown)

            has_succeeded = launch.make_all(board.say, show)
        print(launch.table(), flush=True)
        print(f"table: {grid.train_dir / 'results.md'}", flush=True)
        return 0 if has_succeeded else 1


def _write_job_file(launch: Launch, options: _Options, job_format: Format) -> int:
    runs = [each.run for each in launch.runs]
    if changed := [each for each in launch.runs if each.once]:
        raise UsageError(
            f"--write cannot be combined with --changed={options.changed} when runs have other settings "
            f"({len(changed)} of {len(runs)}), as a task of a job may be started more than once: launch without "
            "--write, or give another --train_dir."
        )
    path = options.out or Path(FILE_NAMES[job_format])
    if options.out is None and path.exists():
        raise UsageError(f"{path} exists, perhaps with your changes: give --out={path} to replace it.")
    try:
        if job_format == "slurm":  # a task whose output has no folder fails without a message
            runs[0].train_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(job_file(runs, job_format, path, options.slots), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {error.filename or path}: {error.strerror or error}.") from error
    print(f"wrote {path} with {len(runs)} tasks")
    return 0


def _counts(runs: Sequence[LaunchedRun]) -> str:
    counts = Counter("waiting" if each.state == "trained" else each.state for each in runs)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


main = _LaunchCommand().main
