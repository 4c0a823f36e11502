"""`asyncrl plot`: draws a run, compares runs, or shows the speed-up of more workers or ranks.

    asyncrl plot [trial] RUN... [--window=100] [--out=FILE.png|.pdf|.svg]
    asyncrl plot compare RUN... [--x=env_steps|per_worker_steps|per_rank_steps|processor_time|wall_time]
        [--metric=eval] [--smooth=10]
    asyncrl plot speedup RUN...

Features have more commands (`PLOTS` of `asyncrl.config.hooks`); --help shows all. RUN is a run's folder or its name in
train_dir. Only its plots/ folder is written to.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveInt

from asyncrl.analysis import drawing, figures
from asyncrl.analysis.figures import Metric, XAxis
from asyncrl.analysis.plots import plots
from asyncrl.analysis.records import Run, read_runs
from asyncrl.commands.runner import Command, text_beside_json
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import (
    ExtraFlag,
    format_examples,
    format_flags,
    help_width,
    nearest_hint,
    option,
    option_flags,
)
from asyncrl.config.value_types import GivenPath
from asyncrl.storage.locating import TRAIN_DIR, locate
from asyncrl.storage.run_folder import MARKER

Say = Callable[[str], None]
_AXES = get_args(XAxis)
_PLOTS = plots()


@dataclass(frozen=True)
class _Figure:
    description: str
    example: str
    flags: tuple[str, ...]
    draws_each_run: bool = False


_FIGURES: dict[str, _Figure] = {
    "trial": _Figure(
        "Draw each run in its own figure: its return with a moving average; for Hogwild and several ranks the mean "
        "return over workers or ranks with a band of one standard deviation. The word trial can be left out.",
        "trial train_dir/my_run",
        ("x", "window", "out", "json"),
        draws_each_run=True,
    ),
    "compare": _Figure(
        "Draw the returns of several runs over one axis. The seeds of one experiment are a group, drawn as its mean "
        "and a band of one standard deviation.",
        "compare train_dir/a_seed* train_dir/b_seed*",
        ("x", "metric", "group", "smooth", "out", "json"),
    ),
    "speedup": _Figure(
        "Draw how much faster more ranks or more rollout workers are: the time to the same number of environment "
        "steps, start-up excluded, against the ideal line. Takes runs of one experiment.",
        "speedup train_dir/workers1 train_dir/workers2 train_dir/workers4",
        ("out", "json"),
    ),
    **{
        name: _Figure(plot.description, plot.example, ("out", "json"), draws_each_run=plot.group_of is None)
        for name, plot in _PLOTS.items()
    },
}


class Options(BaseModel):
    """Values of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    words: tuple[Path, ...]
    window: PositiveInt | None = option(
        None, "records in the moving average [default a tenth of the records, at most 100]"
    )
    x: Annotated[XAxis, BeforeValidator(lambda axis: "env_steps" if axis == "total_steps" else axis)] = option(
        "env_steps",
        "horizontal axis: env_steps, per_worker_steps or per_rank_steps (env_steps divided by the number of workers or "
        "ranks; in a trial those that each worker has made), processor_time (of rollout, inference and learner "
        "processes) or wall_time, since the start; trial takes no times [default env_steps]",
        f"{', '.join(_AXES[:-1])} or {_AXES[-1]}",
    )
    metric: Metric = option("train", "train or eval: returns of training or of evaluations [default train]")
    group: re.Pattern[str] | None = option(
        None,
        "regular expression; runs with the same first capture group, or the same match if it has none, are averaged "
        "[default: runs with the same settings, except seed and length, whose names differ only in a number or date at "
        "the end]",
        "a regular expression",
    )
    smooth: PositiveInt = option(1, "records in a moving average of each run's returns [default 1: none]")
    out: GivenPath | None = option(
        None,
        "file to write, ending in .png, .pdf or .svg [default plots/COMMAND.png in the folder of each run, or of the "
        "first for the others]",
    )
    prints_json: bool = option(
        False, "print the figure's numbers as one JSON object, and the text on standard error", flag="json"
    )

    @property
    def command(self) -> str:
        """The first word; the others are runs."""
        return str(self.words[0])


class _Plot(Command[Options]):
    model = Options
    words = "words"

    def help(self, arguments: Sequence[str], page: str = "all") -> str | None:
        if not {"--help", "-h"} & set(arguments):
            return None
        width = help_width()
        about = "Draw figures of runs. RUN is a run's folder or its name in train_dir; the run may still be training."
        lines = ["usage: asyncrl plot [COMMAND] RUN... --name=value ...", "", *textwrap.wrap(about, width), ""]
        lines += format_examples([f"asyncrl plot {command.example}" for command in _FIGURES.values()])
        for name, command in _FIGURES.items():
            description = textwrap.wrap(command.description, width - 2, break_on_hyphens=False)
            lines += ["", f"{name}:", *(f"  {line}" for line in description)]
            lines += format_flags(option_flags(Options, command.flags))
        return "\n".join(lines)

    def flags(self, arguments: Sequence[str]) -> tuple[ExtraFlag, ...]:
        names = ", ".join(_FIGURES)
        if not arguments:
            raise UsageError(
                f"No run was given: the first argument is a run or one of {names}; --help shows an example of each."
            )
        if (name := arguments[0]) not in _FIGURES:
            runs = sorted(path.parent.name for path in Path(TRAIN_DIR).glob(f"*/{MARKER}"))
            hint = nearest_hint(name, [*_FIGURES, *runs])
            raise UsageError(
                f"There is no command or run {name!r}: the first argument is a run or one of {names}{hint}."
            )
        return option_flags(Options, _FIGURES[name].flags)

    def read(self, arguments: Sequence[str]) -> Options:
        is_run = bool(arguments) and arguments[0] not in _FIGURES and locate(Path(arguments[0])).exists()
        return super().read(["trial", *arguments] if is_run else arguments)

    def problems(self, given: Mapping[str, Any], options: Options | None) -> Iterator[str]:
        name, *runs = given["words"]
        if not runs:
            yield f"No run was given: {name} needs at least one, by its folder's path or its name in train_dir."
        if options is None or options.out is None:
            return
        if options.out.suffix.lower() not in drawing.FORMATS:
            yield f"--out={options.out} is not possible: expected a file name that ends in .png, .pdf or .svg."
        elif _FIGURES[name].draws_each_run and len(runs) > 1:
            yield (
                f"--out={options.out} is one file, but each of the {len(runs)} runs has a figure; without --out, "
                "each is written to plots/ in its run's folder."
            )

    def run(self, options: Options) -> int:
        with text_beside_json(options.prints_json):
            numbers = _draw(options, lambda line: print(line, flush=True))
        if options.prints_json:
            print(json.dumps(numbers, allow_nan=False), flush=True)
        return 0


def _draw(options: Options, say: Say) -> dict[str, Any]:
    """Reads the runs, computes and draws the figures; returns their numbers and files, for JSON.

    Args:
        options: the command line.
        say: prints one line.

    Raises:
        UsageError: matplotlib is missing, no run has records, a run cannot be read or lacks data, or a file cannot be
            written.
    """
    drawing.check_can_draw()
    runs = read_runs(options.words[1:], say)
    if options.command == "trial":
        # All trials are computed before the first is drawn: a run without returns leaves no half of the work.
        trials = [figures.make_trial(run, options.window, options.x) for run in runs]
        numbers = []
        for run, trial in zip(runs, trials, strict=True):
            file = _write(options, run, partial(drawing.draw_trial, trial), say)
            for note in figures.notes(run, trial):
                say(note)
            numbers.append({**trial.to_json(), "file": file})
        return {"trials": numbers}
    if options.command in _PLOTS:
        plot = _PLOTS[options.command]
        if plot.group_of is not None:
            figure = plot.read(runs)
            return {**figure.to_json(), "file": _write(options, runs[0], figure.draw, say)}
        found = [plot.read([run]) for run in runs]
        files = [_write(options, run, figure.draw, say) for run, figure in zip(runs, found, strict=True)]
        return {"runs": [{**figure.to_json(), "file": file} for figure, file in zip(found, files, strict=True)]}
    if options.command == "compare":
        comparison = figures.compare(runs, options.x, options.metric, options.group, options.smooth)
        if len(envs := figures.environments(runs)) > 1:
            say(
                f"warning: The runs are in different environments, so their returns differ in scale: {', '.join(envs)}."
            )
        for line in comparison.summary():
            say(line)
        file = _write(options, runs[0], partial(drawing.draw_comparison, comparison), say)
        return {**comparison.to_json(), "file": file}
    speedup = figures.measure_speedup(runs)
    if differing := figures.unexpected_differences(runs):
        say(f"warning: Besides the number of {speedup.unit}s, the runs differ in {', '.join(differing)}.")
    say(speedup.table())
    return {**speedup.to_json(), "file": _write(options, runs[0], partial(drawing.draw_speedup, speedup), say)}


def _write(options: Options, run: Run, draw: Callable[[Path], None], say: Say) -> str:
    path = options.out or run.path / "plots" / f"{options.command}.png"
    existed = path.exists()
    draw(path)
    say(f"wrote {path}" + (" (replaced)" if existed else ""))
    return str(path)


main = _Plot().main
