"""Reads a grid of runs from a YAML file: every combination of settings, with every seed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import unknown_name
from asyncrl.config.settings import read_mapping
from asyncrl.contrib.experiments.runs import as_flag
from asyncrl.storage.run_folder import as_folder_name

_KEYS = ("settings", "grid", "seeds", "train_dir", "evaluate")
_EVALUATION_KEYS = ("episodes", "checkpoint", "deterministic")
_SET_HERE = {
    "seed": "use seeds",
    "experiment": "runs are named after their settings",
    "train_dir": "write it at the top of the file, beside settings",
    "restart_behavior": "use --changed",
    "quiet": "the output of each run goes to a file",
}
"""Settings that no run of a grid can have of its own, with what to do instead."""
_MOST_NAME_BYTES = 120
_FIRST_IN_NAMES = ("env", "algo")


@dataclass(frozen=True)
class Evaluation:
    """How the policy of each run is evaluated after training.

    Attributes:
        episodes: number of episodes.
        checkpoint: the newest or the best one.
        deterministic: whether the deterministic actions are taken.
    """

    episodes: int
    checkpoint: Literal["newest", "best"] = "newest"
    deterministic: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `asyncrl evaluate`."""
        return (
            f"--episodes={self.episodes}",
            f"--checkpoint={self.checkpoint}",
            f"--deterministic={self.deterministic}",
        )


@dataclass(frozen=True)
class GridRun:
    """One run of a grid.

    Attributes:
        name: name of its folder.
        group: the name without the seed; the runs of a group differ in their seeds only.
        seed: its seed.
        flags: its settings as flags of training, with the seed.
    """

    name: str
    group: str
    seed: int
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """A file of runs.

    Attributes:
        train_dir: folder of all runs.
        runs: the runs, all with the first seed before those with the second.
        evaluation: how their policies are evaluated; None if they are not.
    """

    train_dir: Path
    runs: tuple[GridRun, ...]
    evaluation: Evaluation | None


def read_grid(path: Path, train_dir: Path | None = None) -> Grid:
    """Reads the file of a grid.

    Args:
        path: the file.
        train_dir: folder of all runs, in place of the file's.

    Raises:
        UsageError: the file has mistakes, one line each.
    """
    content = read_mapping(path)
    problems = [
        str(unknown_name(key, _KEYS, f"{path} has an unknown key {key!r}")) for key in content if key not in _KEYS
    ]
    settings = content.get("settings") or {}
    grids = content.get("grid") or {}
    grids = list(grids) if isinstance(grids, list) else [grids]
    for where, values in (("settings", settings), *(("grid", grid) for grid in grids)):
        problems += _find_problems(path, where, values)
    seeds = _read_seeds(content.get("seeds", 1))
    if seeds is None:
        problems.append(
            f"{path}: seeds must be a number of seeds, such as 3, or a list of different ones, such as [0, 1, 2]."
        )
    evaluation = _read_evaluation(path, content.get("evaluate"), problems)
    if problems or seeds is None:
        raise UsageError(*problems)
    combinations = [{**settings, **chosen} for grid in grids for chosen in _combinations(grid)]
    in_names = _names_that_vary(combinations)
    groups = _unique([_name(combination, in_names) for combination in combinations], combinations)
    runs = [
        GridRun(f"{group}_seed{seed}", group, seed, (*_flags(combination), f"--seed={seed}"))
        for seed in seeds
        for group, combination in zip(groups, combinations, strict=True)
    ]
    folder = train_dir or Path(str(content.get("train_dir", Path("train_dir") / path.stem)))
    return Grid(folder.expanduser(), tuple(runs), evaluation)


def _find_problems(path: Path, where: str, values: Any) -> list[str]:
    if not isinstance(values, Mapping):
        lists = " with lists" if where == "grid" else ""
        return [f"{path}: {where} must hold `name: value` lines{lists}."]
    problems = []
    for name, value in values.items():
        if name in _SET_HERE:
            problems.append(f"{path}: {name} cannot be in {where}: {_SET_HERE[name]}.")
        if where == "grid" and (not isinstance(value, list) or not value):
            problems.append(f"{path}: in grid, {name} must be a list of values, such as [{value}].")
    return problems


def _read_seeds(given: Any) -> list[int] | None:
    seeds = list(range(given)) if isinstance(given, int) and not isinstance(given, bool) else given
    is_list = isinstance(seeds, list) and bool(seeds)
    if not (is_list and all(type(seed) is int and seed >= 0 for seed in seeds)):
        return None
    return seeds if len(set(seeds)) == len(seeds) else None


def _read_evaluation(path: Path, given: Any, problems: list[str]) -> Evaluation | None:
    if given is None:
        return None
    values = given if isinstance(given, Mapping) else {"episodes": given}
    unknown = [key for key in values if key not in _EVALUATION_KEYS]
    problems += [str(unknown_name(key, _EVALUATION_KEYS, f"{path}: in evaluate there is no {key}")) for key in unknown]
    known: dict[str, Any] = {"episodes": 100, "checkpoint": "newest", "deterministic": False}
    known |= {key: values[key] for key in values if key in known}
    if type(known["episodes"]) is not int or known["episodes"] < 1:
        problems.append(f"{path}: evaluate needs a number of episodes, such as 100.")
    if known["checkpoint"] not in ("newest", "best"):
        problems.append(f"{path}: in evaluate, checkpoint={known['checkpoint']} is not possible: newest or best.")
    if not isinstance(known["deterministic"], bool):
        problems.append(f"{path}: in evaluate, deterministic={known['deterministic']} is not possible: True or False.")
    return Evaluation(**known)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _names_that_vary(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that runs are named after: environment and algorithm, and all that are not the same in all runs."""
    names = dict.fromkeys(name for combination in combinations for name in combination)
    missing = object()
    varying = [name for name in names if len({repr(each.get(name, missing)) for each in combinations}) > 1]
    return [*(name for name in _FIRST_IN_NAMES if name in names), *(n for n in varying if n not in _FIRST_IN_NAMES)]


def _name(combination: Mapping[str, Any], names: Sequence[str]) -> str:
    parts = []
    for name in names:
        if name in combination:
            value = as_flag(name, combination[name]).partition("=")[2]
            parts.append(as_folder_name(value if name in _FIRST_IN_NAMES else f"{name}-{value}"))
    return "_".join(parts) or "run"


def _unique(names: Sequence[str], combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names; those that are too long, or that another combination has, end with a hash of the settings.

    Raises:
        UsageError: two combinations are equal.
    """
    flags = [_flags(combination) for combination in combinations]
    doubled = next((each for number, each in enumerate(flags) if each in flags[:number]), None)
    if doubled is not None:
        raise UsageError(f"The grid has the same run twice: {' '.join(doubled)}.")
    unique = []
    for name, own in zip(names, flags, strict=True):
        if names.count(name) > 1 or len(name.encode()) > _MOST_NAME_BYTES:
            name = f"{name[:_MOST_NAME_BYTES]}_{hashlib.sha256(' '.join(sorted(own)).encode()).hexdigest()[:8]}"
        unique.append(name)
    return unique


def _flags(combination: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(as_flag(name, value) for name, value in combination.items())
