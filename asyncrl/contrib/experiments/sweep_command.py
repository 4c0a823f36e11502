"""`asyncrl sweep`: searches good settings for an environment, with Optuna.

    asyncrl sweep --study=my_search --env=CartPole-v1 --space=ppo --num_trials=50
    asyncrl sweep --study=my_search    (continues it, or joins it from another machine that shares the folder)

All runs, the table of results and best.yaml are in train_dir/my_search. All other flags are settings of every run.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt

from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, help_page, option
from asyncrl.config.loading import load
from asyncrl.config.settings import read_mapping
from asyncrl.contrib.experiments.board import Board
from asyncrl.contrib.experiments.objective import Kind, Objective
from asyncrl.contrib.experiments.runs import as_flag
from asyncrl.contrib.experiments.search_space import find_space, read_space
from asyncrl.contrib.experiments.study import Definition, Pruner, Sampler, read_definition, require_optuna
from asyncrl.contrib.experiments.sweep import Sweep
from asyncrl.contrib.experiments.sweep_results import BEST
from asyncrl.processes.reader import start_dropping_unread_output
from asyncrl.storage.locating import TRAIN_DIR
from asyncrl.storage.run_folder import MARKER, checked_run_path

_OBJECTIVE_FIELDS = {"objective": "kind", "threshold": "threshold", "baseline": "baseline"}
_DEFINITION_FIELDS = {"sampler": "sampler", "pruner": "pruner", "search_seed": "seed"}
"""Fields of `Objective` and of `Definition`, by flag."""

INSTEAD = {
    "seed": "give --search_seed; trials have seeds of their own",
    "experiment": "give --study; runs are named after their trials",
    "restart_behavior": "a study continues, or give another --study",
    "quiet": "the output of each run goes to a file",
}
"""Settings of training that a sweep sets itself, with what the user can do instead."""

_FILE_FLAGS = (
    ExtraFlag("config", "YAML file with settings of every run", is_bool=False),
    ExtraFlag("preset", "preset of every run, or none", is_bool=False),
)


class _Options(BaseModel):
    training: dict[str, str] = {}
    study: str | None = option(None, "name of the study's folder in train_dir (required)")
    train_dir: str = option(TRAIN_DIR, "folder that holds the study's folder [default train_dir]")
    space: str = option(
        "ppo", "which settings are searched, and between which values: ppo, sac, or a YAML file [default ppo]"
    )
    num_trials: PositiveInt = option(50, "trials, pruned ones included, after which no other starts [default 50]")
    objective: Kind = option(
        "return",
        "return of the last evaluation; steps_to_threshold or seconds_to_threshold, the first evaluation that reaches "
        "--threshold; or return_per_second, the return above --baseline for each second of training [default return]",
    )
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = option(
        None, "return to reach, for the objectives *_to_threshold"
    )
    baseline: Annotated[float, Field(allow_inf_nan=False)] = option(
        0.0, "return of a policy that is worth nothing, for return_per_second [default 0]"
    )
    sampler: Sampler = option("tpe", "what chooses settings: tpe, cmaes or random [default tpe]")
    pruner: Pruner = option("median", "what stops runs early: median, hyperband or none [default median]")
    search_seed: NonNegativeInt = option(0, "seed of the sampler; trial N is run with this seed + N [default 0]")
    slots: PositiveInt | None = option(
        None,
        "runs at the same time, each with its share of the cores [default: as many as have a core for each of their "
        "threads]",
    )
    final_best: NonNegativeInt = option(3, "how many of the best trials are run again with fresh seeds [default 3]")
    final_seeds: PositiveInt = option(3, "fresh seeds of each of them, and of the default settings [default 3]")


class _SweepCommand(Command[_Options]):
    """Its exit code is 1 if no trial was completed."""

    usage = "asyncrl sweep --study=NAME --env=ID"
    description = (
        "Search good settings for an environment: trials are runs, chosen by Optuna, stopped early if they are worse "
        "than others, and the best ones are run again with fresh seeds. The same command continues a study that was "
        "stopped, and joins it from other machines that share the folder. All other flags of training are settings of "
        "every run."
    )
    examples = (
        "asyncrl sweep --study=my_search --env=CartPole-v1 --train_for_env_steps=100000 --num_trials=50",
        "asyncrl sweep --study=cheetah --env=HalfCheetah-v5 --space=sac --slots=4 --sampler=cmaes",
        "asyncrl sweep --study=my_search    (continues or joins it)",
    )
    model = _Options
    instead = INSTEAD
    if_stopped = "Stopped. The same command continues the study."

    def flags(self, arguments: Sequence[str]) -> tuple[ExtraFlag, ...]:
        return (*super().flags(arguments), *_FILE_FLAGS)

    def help(self, arguments: Sequence[str], page: str = "all") -> str | None:
        page_or_none = help_page(arguments)
        return None if page_or_none is None else super().help(["--help"], page_or_none)

    def problems(self, given: Mapping[str, Any], options: _Options | None) -> Iterator[str]:
        if options is None:
            return
        if options.study is None:
            yield "--study is required: give the study a name, such as --study=my_search."
        if options.objective.endswith("_to_threshold") and options.threshold is None:
            yield f"--objective={options.objective} needs a return to reach: give --threshold=NUMBER."

    def run(self, options: _Options) -> int:
        assert options.study is not None
        require_optuna(options.sampler)
        folder = checked_run_path(options.train_dir, options.study)
        if (folder / MARKER).is_file():
            raise UsageError(f"--study={options.study} is the name of a run, {folder}: give the study another name.")
        sweep = Sweep(
            folder,
            _definition(options, options.training, folder),
            num_trials=options.num_trials,
            num_core_sets=options.slots,
            num_finalists=options.final_best,
            num_final_seeds=options.final_seeds,
        )
        start_dropping_unread_output()
        with Board() as board:
            outcome = sweep.run(
                board.say, lambda runs: board.show(f"{len(runs)} runs", [(run, "training") for run in runs])
            )
        if outcome == "continued elsewhere":
            return 0
        print((folder / "results.md").read_text(encoding="utf-8"), flush=True)
        if outcome == "no complete trial":
            print("error: No trial was completed, so the sweep has found no settings.", file=sys.stderr)
            return 1
        print(f"results: {folder / 'results.md'}; best settings: {folder / BEST}", flush=True)
        return 0


def _definition(options: _Options, texts: dict[str, str], folder: Path) -> Definition:
    """What the flags define; without flags of training, what the study in the folder has where no flag says more."""
    saved = read_definition(folder)
    if saved is not None and not texts:
        given = {name: getattr(options, name) for name in options.model_fields_set}
        goal = {field: given[flag] for flag, field in _OBJECTIVE_FIELDS.items() if flag in given}
        own = {field: given[flag] for flag, field in _DEFINITION_FIELDS.items() if flag in given}
        space = saved.space
        if "space" in given:
            space = dict(read_mapping(find_space(options.space)))
            _leave_out(space, saved.flags)
        objective = dataclasses.replace(saved.objective, **goal)
        return dataclasses.replace(saved, space=space, objective=objective, **own)
    if "env" not in texts and "config" not in texts:
        raise UsageError(
            "--env is required for a new study: give the environment to search settings for, such as --env=CartPole-v1 "
            f"(there is no study in {folder})."
        )
    path = find_space(options.space)
    content: dict[str, Any] = read_mapping(path)
    fixed = read_space(content, str(path)).settings
    objective = Objective(
        options.objective, math.inf if options.threshold is None else options.threshold, options.baseline
    )
    flags = _with_settings_of_file(texts, fixed)
    fixed_by_flags = _leave_out(content, flags)
    if fixed_by_flags:
        if not content["space"]:
            raise UsageError(f"--{', --'.join(sorted(fixed_by_flags))}: nothing is left in {path} to search.")
        print(f"not searched, because given: {', '.join(sorted(fixed_by_flags))}", flush=True)
    return Definition(flags, content, objective, options.sampler, options.pruner, options.search_seed)


def _leave_out(content: dict[str, Any], flags: Sequence[str]) -> set[str]:
    """Takes the settings that `flags` give out of a search space's content; returns their names."""
    searched: dict[str, Any] = content["space"]
    given = {flag[2:].partition("=")[0] for flag in flags} & searched.keys()
    content["space"] = {name: values for name, values in searched.items() if name not in given}
    return given


def _with_settings_of_file(texts: Mapping[str, str], fixed: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags of training with the settings in the --config file in its place, as the file may change or move.

    Flags and the settings that the search space fixes override the file.
    """
    given = [f"--{name}={text}" for name, text in texts.items()]
    if "config" not in texts:
        return tuple(given)
    load([*(as_flag(name, value) for name, value in fixed.items()), *given])  # names the file in its mistakes
    content = read_mapping(Path(texts["config"]))
    own = {*texts, *fixed, *INSTEAD, "train_dir"}
    in_file = [as_flag(name, value) for name, value in content.items() if name not in own]
    return (*in_file, *(flag for flag in given if not flag.startswith("--config=")))


main = _SweepCommand().main
