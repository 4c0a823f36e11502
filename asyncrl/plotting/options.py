"""The command line of `python -m asyncrl.plot`: what to draw, of which runs, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, format_examples, format_flags, nearest, split_flags
from asyncrl.config.problems import refused_value
from asyncrl.plotting.comparison import Metric, XAxis

CommandName = Literal["trial", "compare", "speedup"]


@dataclass(frozen=True)
class _Command:
    """A command, for --help and for reading its flags."""

    description: str
    flags: tuple[ExtraFlag, ...]
    example: str


_OUT = ExtraFlag("out", "PNG file to write [default plots/COMMAND.png in the first run's folder]", is_bool=False)
_JSON = ExtraFlag("json", "print the figure's numbers as one JSON object on the last line")
_COMMANDS: dict[str, _Command] = {
    "trial": _Command(
        "for each run: mean return over its workers or ranks with a band of one standard deviation, and its moving "
        "average",
        (
            ExtraFlag("window", "records in the moving average [default 100]", is_bool=False),
            ExtraFlag(
                "out", "PNG file to write, of one run [default plots/trial.png in each run's folder]", is_bool=False
            ),
            _JSON,
        ),
        "trial train_dir/my_run",
    ),
    "compare": _Command(
        "returns of several runs over one axis; the seeds of a run are one group, with its mean and standard deviation",
        (
            ExtraFlag(
                "x",
                "per_worker_steps or per_rank_steps (total steps divided by workers or by ranks), total_steps or "
                "wall_time (since the command)",
                is_bool=False,
                is_required=True,
            ),
            ExtraFlag("metric", "train or eval: returns of training or of evaluations [default train]", is_bool=False),
            ExtraFlag(
                "group",
                "regular expression; runs with the same first capture group, or the same match where it has none, are "
                "averaged [default: runs whose names differ only in a trailing _seedN, -seedN or -N]",
                is_bool=False,
            ),
            _OUT,
            _JSON,
        ),
        "compare train_dir/a_seed1 train_dir/a_seed2 train_dir/b_seed1 --x=wall_time",
    ),
    "speedup": _Command(
        "time to the same number of environment steps, start-up excluded, over the number of ranks where it differs, "
        "else of rollout workers, against the ideal line; runs of one experiment",
        (_OUT, _JSON),
        "speedup train_dir/workers1 train_dir/workers2 train_dir/workers4",
    ),
}


class Options(BaseModel):
    """What the command line asks for.

    Attributes:
        command: what to draw.
        runs: folders of runs.
        out: PNG file; None for the default place.
        json_: whether to print the numbers.
        window: records in the moving average.
        x, metric, group: axis, returns and regular expression of groups of `compare`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: CommandName
    runs: tuple[Path, ...]
    out: Path | None = None
    json_: bool = False
    window: PositiveInt = 100
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
        raise UsageError(f"No command was given: the first argument is one of {names}; see --help.")
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
            problems.append(refused_value(flag, item["input"], item["msg"]))
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
    usage = "usage: python -m asyncrl.plot COMMAND RUN... [--name=value ...]"
    lines = [
        usage,
        "",
        "Draw PNG figures. RUN is a run's folder or its name in train_dir; it may still be training.",
        "",
        *format_examples([f"python -m asyncrl.plot {command.example}" for command in _COMMANDS.values()]),
    ]
    for name, command in _COMMANDS.items():
        lines += ["", f"{name}: {command.description}"]
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
    if options.out.suffix.lower() != ".png":
        return [f"--out={options.out}: figures are PNG files, so its name must end in .png"]
    if options.command == "trial" and len(options.runs) > 1:
        return [
            f"--out={options.out} is one file, but there are {len(options.runs)} runs with a figure each: "
            "leave it out, and each lies in plots/ of its run's folder"
        ]
    return []
