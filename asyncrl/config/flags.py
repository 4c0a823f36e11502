"""Flags of the command lines: splitting them, options that are not settings, error sentences, and --help."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from asyncrl.config.errors import Problem
from asyncrl.config.other_names import explain_name, other_meaning, other_names
from asyncrl.config.settings import SECTION_TITLES, Setting, expected_values

TRUTH_VALUES = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}
_ENV_ID = re.compile(r"^[A-Za-z][\w/.:]*-v\d+$")
_NEAR = 1 / 3  # share of letters that differ

COMMON = (
    *("env", "env_kwargs", "algo", "seed", "train_for_env_steps", "train_for_seconds", "train_dir", "experiment"),
    *("eval_every_env_steps", "async_rl", "serial_mode", "num_workers", "num_envs_per_worker", "device"),
    *("rollout", "batch_size", "num_batches_per_epoch", "num_epochs", "gamma", "learning_rate"),
    *("use_rnn", "encoder_mlp_layers", "callbacks", "quiet"),
)
"""Settings that the short page of help shows."""

REQUIRED = ("env",)
"""Settings without which no new run starts."""

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True)
class ExtraFlag:
    """A flag of one command line that is not a setting of the run.

    Attributes:
        name: the flag's name, with underscores.
        description: for --help.
        is_bool: True for a switch, False for a flag that takes text.
        values: texts that a switch takes in place of a truth value.
    """

    name: str
    description: str
    is_bool: bool = True
    values: tuple[str, ...] = ()


def split_flags(
    argv: Sequence[str], settings: Mapping[str, Setting], extra_flags: Iterable[ExtraFlag]
) -> tuple[dict[str, str], list[Problem]]:
    """Splits `--name=value`, `--name value`, a bare `--switch` and `--no-switch`, with `-` and `_` alike.

    Returns the text of each flag, the last one if it was given twice ("True" for a bare switch), and a problem for each
    argument that is not a flag and for each flag that lacks its value. `--policy.N.NAME` is a setting of one policy.
    """
    switches = {flag.name: flag.is_bool for flag in extra_flags} | {name: s.is_bool for name, s in settings.items()}
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    rest = list(argv)
    if settings:
        for number, name in filter(None, map(policy_flag, (token[2:].partition("=")[0] for token in rest))):
            if name in settings:
                switches[f"policy.{number}.{name}"] = settings[name].is_bool
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            problems.append(Problem((), _unexpected(token, switches)))
            continue
        written, equals, text = token[2:].partition("=")
        name = written.replace("-", "_")
        is_negated = name not in switches and name.startswith("no_") and switches.get(name[3:], False)
        if is_negated and not equals:
            texts[name[3:]] = "False"
        elif name not in switches:
            if (own := policy_flag(name)) is None:
                problems.append(unknown_name(name, switches, f"There is no flag --{written}", "--"))
            else:
                problems.append(unknown_name(own[1], settings, f"There is no flag --{written}", f"--policy.{own[0]}."))
            if not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)
        elif equals:
            texts[name] = text
        elif switches[name]:
            texts[name] = rest.pop(0) if rest and rest[0].lower() in TRUTH_VALUES else "True"
        else:
            values: list[str] = []  # a list takes all texts up to the next flag; a negative number is not a flag
            own = policy_flag(name)
            setting = settings.get(name if own is None else own[1])
            takes_several = setting is not None and setting.is_list
            while rest and (takes_several or not values) and not rest[0].startswith("--"):
                values.append(rest.pop(0))
            if values:
                texts[name] = ", ".join(values)
            else:
                problems.append(Problem((name,), f"--{written} needs a value: give --{written}=VALUE."))
    return texts, problems


def separate_words(tokens: Sequence[str], flags: Iterable[ExtraFlag]) -> tuple[list[str], list[str]]:
    """Separates words, such as folders of runs, from flags; the word after `--name` is its value if it takes one."""
    switches = {flag.name: flag.is_bool for flag in flags}
    words: list[str] = []
    rest: list[str] = []
    before = ""  # the flag that may take the next token as its value
    for token in tokens:
        is_flag = token.startswith("--")
        is_value = before in switches and (not switches[before] or token.lower() in TRUTH_VALUES)
        (rest if is_flag or is_value else words).append(token)
        before = token[2:].replace("-", "_") if is_flag else ""
    return words, rest


def policy_flag(name: str) -> tuple[int, str] | None:
    """The number and the setting of a flag `policy.N.NAME`; None for any other."""
    found = re.fullmatch(r"policy\.(\d+)\.([\w-]+)", name)
    return None if found is None else (int(found[1]), found[2].replace("-", "_"))


def option(default: Any, description: str, expected: str | None = None, *, flag: str | None = None) -> Any:
    """Defines a flag that is not a setting, as a field of a pydantic model.

    Args:
        default: value if the flag is not given.
        description: for --help.
        expected: its possible values, for errors; by default they follow from the field's type.
        flag: the flag's name, if it differs from the field's.
    """
    return Field(default, alias=flag, description=description, json_schema_extra={"expected": expected})


def option_flags(model: type[BaseModel], names: Iterable[str] | None = None) -> tuple[ExtraFlag, ...]:
    """The flags of a model's fields that have a description; only those in `names`, if given."""
    fields = {field.alias or name: field for name, field in model.model_fields.items() if field.description}
    return tuple(
        ExtraFlag(name, field.description or "", is_bool=field.annotation in (bool, bool | None))
        for name, field in fields.items()
        if names is None or name in names
    )


def parse_options(model: type[Options], values: Mapping[str, Any]) -> tuple[Options | None, list[str]]:
    """Reads options from the texts of flags, by the flags' names, and values of other fields.

    Returns the options, None if a text is refused; and a sentence for each refused text.
    """
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        refused = dict.fromkeys(str(item["loc"][0]) for item in error.errors())
    schemas = model.model_json_schema()["properties"]
    expected = {
        name: schemas[name].get("expected") or expected_values(schemas[name], with_none=False) for name in refused
    }
    return None, [refused_value(name, values[name], expected[name]).text for name in refused]


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that `name` was probably meant to be, the nearest first; upper and lower case are alike.

    A name is near if at most a third of the letters differ, or if `name` is at least half of it and made of whole words
    of it, such as workers of num_workers.
    """
    distances = {each: _distance(name.lower(), each.lower()) for each in known}
    near = sorted((each for each in distances if distances[each] <= _NEAR), key=distances.__getitem__)
    return near[:most]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The nearest of the known names; None if none is near."""
    return next(iter(nearest_names(name, known)), None)


def _distance(name: str, other: str) -> float:
    """The share of letters that differ, by the fewest insertions, deletions, replacements and swaps of neighbours."""
    shorter, longer = sorted((len(name), len(other)))
    if longer - shorter > _NEAR * longer:
        is_part = 2 * shorter >= longer == len(other) and f"_{name}_" in re.sub(r"[\W_]+", "_", f"_{other}_")
        return _NEAR if is_part else 1.0
    before: list[int] = []
    row = list(range(len(other) + 1))  # edits from the letters of `name` so far to each beginning of `other`
    for count, letter in enumerate(name, start=1):
        before, last, row = row, before, [count]
        for idx, other_letter in enumerate(other):
            edits = min(before[idx] + (letter != other_letter), before[idx + 1] + 1, row[idx] + 1)
            is_swap = count > 1 and idx > 0 and (letter, name[count - 2]) == (other[idx - 1], other_letter)
            row.append(min(edits, last[idx - 1] + 1) if is_swap else edits)
    return row[-1] / max(longer, 1)


def nearest_hint(name: str, known: Iterable[str], most: int = 1) -> str:
    """The end of a sentence about an unknown name: the nearest known ones; empty if none is near."""
    return near_hint(nearest_names(name, known, most))


def near_hint(near: Sequence[str]) -> str:
    """The same end, of known names that are near."""
    return f"; the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else ""


def unknown_name(name: str, known: Iterable[str], text: str, prefix: str = "") -> Problem:
    """The problem of an unknown name, with the setting that was probably meant.

    Args:
        name: the unknown name.
        known: all possible names.
        text: the sentence about it, without its full stop.
        prefix: written before the nearest name.
    """
    known = list(known)
    explained = explain_name(name, known)
    if explained is not None:
        return Problem(tuple(filter(None, [other_names()[name].setting])), f"{text}: {explained}.")
    near = nearest(name, known)
    return Problem((near,), f"{text}; the nearest is {prefix}{near}.") if near else Problem((), f"{text}.")


def refused_value(name: str, value: Any, expected: str, where: str = "--", reason: str = "") -> Problem:
    """The problem that a flag or a setting does not take a value, with what was probably meant.

    Args:
        name: the flag or setting.
        value: what it was given.
        expected: its possible values, in words.
        where: written before the name: `--`, or the file that has the value.
        reason: why, if there is more to say than what is expected.
    """
    meant = other_meaning(name, str(value))
    if meant is None and isinstance(value, str) and "one of " in expected:
        near = nearest(value.lower(), expected.replace("one of ", "").replace(" or ", ", ").split(", "))
        meant = near and f"the nearest is {near}"
    hint = "".join(f"; {each.rstrip('.')}" for each in (reason, meant) if each)
    return Problem((name,), f"{where}{name}={format_value(value)} is not possible: expected {expected}{hint}.")


def _unexpected(token: str, known: Mapping[str, bool]) -> str:
    """The sentence about an argument that is not a flag, with the flag that was probably meant."""
    name, equals, value = token.lstrip("-").partition("=")
    name = name.replace("-", "_")
    if name in known:
        meant = f"--{name}" + (f"={value}" if equals else "")
    elif "env" in known and _ENV_ID.search(token):
        meant = f"--env={token}"
    elif "experiment" in known and not token.startswith("-"):
        meant = f"--experiment={token}"
    else:
        return f"Unexpected argument {token!r}. Flags are given as --name=value; --help lists them."
    return f"Unexpected argument {token!r}. Did you mean {meant}?"


def help_page(argv: Sequence[str]) -> str | None:
    """The page of help that a command line asks for: `short`, `all` or the name of a section; None without --help."""
    for token in argv:
        if token in ("--help", "-h"):
            return "short"
        if token.startswith("--help="):
            return token.partition("=")[2]
    return None


def format_help(
    usage: str,
    description: str,
    settings: Mapping[str, Setting],
    extra_flags: Iterable[ExtraFlag],
    examples: Sequence[str],
    page: str = "all",
) -> str:
    """The text of --help: examples, the command's own flags, then settings by section.

    Args:
        usage: the command.
        description: what it does.
        settings: the settings that it takes.
        extra_flags: its other flags.
        examples: commands to start from.
        page: `all` shows every setting, a section's name those of the section, any other text those in `COMMON`.
    """
    width = help_width()
    lines = [f"usage: {usage} --name=value ...", "", *textwrap.wrap(description, width), "", *format_examples(examples)]
    lines += ["", "flags of this command:", *format_flags([ExtraFlag("help", "show this text"), *extra_flags])]
    is_short = page not in ("all", *SECTION_TITLES)
    for section, title in SECTION_TITLES.items():
        shown = [
            setting
            for setting in settings.values()
            if setting.section == section and (setting.name in COMMON if is_short else page in ("all", section))
        ]
        lines += ["", f"{title}:"] if shown else []
        for setting in shown:
            is_required = setting.name in REQUIRED
            default = "required for a new run" if is_required else f"default {format_value(setting.default)}"
            lines += _format_flag(setting.name, f"{setting.description} [{setting.expected}; {default}]", width)
    if page != "all":
        used = {setting.section for setting in settings.values()}
        sections = ", ".join(section for section in SECTION_TITLES if section in used)
        lines += ["", *textwrap.wrap(f"--help=all shows every setting, --help=SECTION one of {sections}.", width)]
    return "\n".join(lines)


def format_examples(examples: Sequence[str]) -> list[str]:
    """Commands to start from, as lines of --help."""
    return ["example:" if len(examples) == 1 else "examples:", *(f"  {example}" for example in examples)]


def format_flags(flags: Iterable[ExtraFlag]) -> list[str]:
    """Flags of one command, as lines of --help."""
    width = help_width()
    lines: list[str] = []
    for flag in flags:
        lines += _format_flag(flag.name if flag.is_bool else f"{flag.name}=VALUE", flag.description, width)
    return lines


def help_width() -> int:
    """Columns of --help on this terminal."""
    return min(120, max(60, shutil.get_terminal_size().columns))


def _format_flag(name: str, text: str, width: int) -> list[str]:
    indent = 30
    head = f"  --{name}"
    lines = [" " * indent + line for line in textwrap.wrap(text, width - indent, break_on_hyphens=False)]
    if len(head) < indent - 1:
        return [head.ljust(indent) + lines[0].lstrip(), *lines[1:]]
    return [head, *lines]


def format_value(value: Any) -> str:
    """A value as a person would write it on the command line."""
    if value is None:
        return "none"
    if value == "":
        return "empty"
    if isinstance(value, list | tuple):
        return ",".join(str(element) for element in value) or "[]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def multiples_as_flags(name: str, value: int, step: int) -> list[str]:
    """The multiples of `step` next to `value`, above 0, as flags."""
    below = value // step * step
    return [f"--{name}={multiple}" for multiple in (below, below + step) if multiple > 0]


def divisor_near(number: int, wanted: int) -> int:
    """The divisor of `number` that is nearest to `wanted`, the smaller of two."""
    return min((count for count in range(1, number + 1) if number % count == 0), key=lambda count: abs(count - wanted))
