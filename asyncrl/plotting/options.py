"""The command line of `python -m asyncrl.plot`: what to draw, of which runs, and how."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, format_examples, format_flags, help_width, nearest, split_flags
from asyncrl.config.problems import refused_value
from asyncrl.plotting.comparison import Metric, XAxis
from asyncrl.plotting.drawing import FORMATS

CommandName = Literal["trial", "compare", "speedup"]

_EXPECTED = {
    "window": "a whole number greater than 0",
    "x": " or ".join((", ".join(get_args(XAxis)[:-1]), get_args(XAxis)[-1])),
    "metric": "train or eval",
    "group": "a regular expression",
    "out": "a path",
}


@dataclass(frozen=True)
class _Command:
    """A command, for --help and for reading its flags."""

    description: str
    example: str
    flags: tuple[ExtraFlag, ...]


def _out(default: str) -> ExtraFlag:
    return ExtraFlag("out", f"file to write, ending in .png, .pdf or .svg [default {default}]", is_bool=False)


_JSON = ExtraFlag("json", "print the figure's numbers as one JSON object on the last line")
_IN_FIRST = "plots/{}.png in the first run's folder"
_COMMANDS: dict[str, _Command] = {
    "trial": _Command(
        "Draw each run in its own figure: the mean return over its workers or ranks, a band of one standard "
        "deviation, and a moving average of the mean.",
        "trial train_dir/my_run",
        (
            ExtraFlag(
                "window", "records in the moving average [default a tenth of the records, at most 100]", is_bool=False
            ),
            _out("plots/trial.png in each run's folder"),
            _JSON,
        ),
    ),
    "compare": _Command(
        "Draw the returns of several runs over one axis. The seeds of one experiment are a group, drawn as its mean "
        "and a band of one standard deviation.",
        "compare train_dir/a_seed* train_dir/b_seed* --x=total_steps",
        (
            ExtraFlag(
                "x",
                "horizontal axis: total_steps, per_worker_steps or per_rank_steps (total steps divided "
                "by the number of workers or ranks), or wall_time, since the start",
                is_bool=False,
                is_required=True,
            ),
            ExtraFlag("metric", "train or eval: returns of training or of evaluations [default train]", is_bool=False),
            ExtraFlag(
                "group",
                "regular expression; runs with the same first capture group, or the same match if it has none, are "
                "averaged [default: runs with the same settings, except seed and length, whose names differ only in a "
                "number or date at the end]",
                is_bool=False,
            ),
            _out(_IN_FIRST.format("compare")),
            _JSON,
        ),
    ),
    "speedup": _Command(
        "Draw how much faster more ranks or more rollout workers are: the time to the same number of environment "
        "steps, start-up excluded, against the ideal line. Takes runs of one experiment.",
        "speedup train_dir/workers1 train_dir/workers2 train_dir/workers4",
        (_out(_IN_FIRST.format("speedup")), _JSON),
    ),
}


class Options(BaseModel):
    """What the command line asks for.

    Attributes:
        command: what to draw.
        runs: folders of runs.
        out: file to write; None for the default place.
        json_: whether to print the numbers.
        window: records in the moving average; None for as many as fit the run.
        x, metric, group: axis, returns and regular expression of groups of `compare`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: CommandName
    runs: tuple[Path, ...]
    out: Path | None = None
    json_: bool = False
    window: PositiveInt | None = None
    x: XAxis = "total_steps"
    metric: Metric = "train"
    group: re.Pattern[str] | None = None


def read_options(argv: Sequence[str]) -> Options:
    """Reads `COMMAND RUN... [--name=value ...]`.

    Raises:
        UsageError: everything that is wrong with it, one line each.
    """
    names = ", ".join(_COMMANDS)
    if not argv:
        raise UsageError(
            f"No command was given: the first argument is one of {names}; --help shows an example of each."
        )
    name, command = argv[0], _COMMANDS.get(argv[0])
    if command is None:
        near = nearest(name, _COMMANDS)
        hint = f"; the nearest is {near}" if near else ""
        raise UsageError(f"There is no command {name!r}: the first argument is one of {names}{hint}.")
    runs, flag_tokens = _separate(argv[1:], command.flags)
    flags = split_flags(flag_tokens, {}, command.flags)
    problems = [str(problem) for problem in flags.problems]
    texts = {"json_" if flag == "json" else flag: text for flag, text in flags.texts.items()}
    options = None
    try:
        options = Options.model_validate({"command": name, "runs": runs, **texts})
    except ValidationError as error:
        for item in error.errors():
            flag = str(item["loc"][0]).rstrip("_")
            problems.append(refused_value(flag, item["input"], _EXPECTED.get(flag, "True or False")))
    if not runs:
        problems.append(f"No run was given: {name} needs at least one, by its folder's path or its name in train_dir.")
    if name == "compare" and "x" not in texts:
        axes = ", ".join(f"--x={axis}" for axis in get_args(XAxis))
        problems.append(f"--x is required: choose the horizontal axis. Would pass: {axes}.")
    if options is not None:
        problems += _problems_of_output(options)
    if problems or options is None:
        raise UsageError("\n".join(problems))
    return options


def help_text() -> str:
    """The text of --help."""
    width = help_width()
    lines = [
        "usage: python -m asyncrl.plot COMMAND RUN... --name=value ...",
        "",
        *textwrap.wrap(
            "Draw figures of runs. RUN is a run's folder or its name in train_dir; the run may still be training.",
            width,
        ),
        "",
        *format_examples([f"python -m asyncrl.plot {command.example}" for command in _COMMANDS.values()]),
    ]
    for name, command in _COMMANDS.items():
        lines += ["", f"{name}:"]
        lines += textwrap.wrap(
            command.description, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        lines += format_flags(command.flags)
    return "\n".join(lines)


def _separate(tokens: Sequence[str], flags: Sequence[ExtraFlag]) -> tuple[list[str], list[str]]:
    """Takes folders of runs and flags apart; the word after `--name` is its value where the flag takes one."""
    takes_value = {flag.name for flag in flags if not flag.is_bool}
    runs: list[str] = []
    rest: list[str] = []
    is_value = False
    for token in tokens:
        is_flag = token.startswith("--")
        (rest if is_flag or is_value else runs).append(token)
        is_value = is_flag and token[2:].replace("-", "_") in takes_value
    return runs, rest


def _problems_of_output(options: Options) -> list[str]:
    if options.out is None:
        return []
    if options.out.suffix.lower() not in FORMATS:
        return [f"--out={options.out} is not possible: expected a file name that ends in .png, .pdf or .svg."]
    if options.command == "trial" and len(options.runs) > 1:
        return [
            f"--out={options.out} is one file, but each of the {len(options.runs)} runs has a figure; without --out, "
            "each is written to plots/ in its run's folder."
        ]
    return []
