"""`asyncrl validate`: reports every problem of a run's settings, or shows its plan; starts nothing.

A plan is shown only if the run can start: otherwise it would be the plan of a run that cannot exist.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import PositiveInt

from asyncrl import native
from asyncrl.commands.console import (
    PRINT_CONFIG,
    format_settings,
    network_lines,
    plan_as_data,
    plan_lines,
    print_findings,
    shown_settings,
)
from asyncrl.commands.runner import TrainingCommand
from asyncrl.commands.validation import Options
from asyncrl.config import hooks
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option, option_flags, parse_options
from asyncrl.config.loading import LoadedConfig
from asyncrl.config.machine import Machine
from asyncrl.envs.spec import TreeAction, mask_layout
from asyncrl.run import preflight
from asyncrl.run.spec_warnings import suits_native_core


class _Options(Options):
    as_json: bool = option(False, "print one JSON object instead of text", flag="json")
    num_ranks: PositiveInt = option(
        1, "ranks that torchrun will start on all machines; shows one rank's plan and the totals [default 1]"
    )
    num_local_ranks: PositiveInt | None = option(
        None, "ranks that torchrun will start on this machine, which share its memory [default all]"
    )

    def find_problems(self) -> Iterator[str]:
        if self.num_ranks % (self.num_local_ranks or self.num_ranks):
            yield (
                f"--num_ranks={self.num_ranks} must be a multiple of --num_local_ranks={self.num_local_ranks}: every "
                "machine runs the same number of ranks."
            )


_Read = tuple[list[Options], LoadedConfig]
"""The options of the command and of each feature, and the settings."""


class _Validate(TrainingCommand[_Read]):
    """Its exit code is 0 if the run can start, and 1 if the environment raised."""

    usage = "asyncrl validate"
    description = "Check the settings of a training run and show what it would need. Takes the flags of training."
    examples = ("asyncrl validate --env=Humanoid-v5 --async_rl=False --batch_size=512",)

    def read(self, arguments: Sequence[str]) -> _Read:
        features = (hooks.load(place) for place in hooks.hooks("VALIDATION").values())
        models: list[type[Options]] = [_Options, *features]
        loaded = self.load(arguments, [PRINT_CONFIG, *(flag for model in models for flag in option_flags(model))])
        given = {name: value for name, value in loaded.cli.items() if value is not None}
        parsed = [parse_options(model, given) for model in models]
        parts = [part for part, _ in parsed if part is not None]
        refused = [text for _, texts in parsed for text in texts]
        if problems := refused or [text for part in parts for text in part.find_problems()]:
            raise UsageError(*problems)
        return parts, loaded

    def run(self, options: _Read) -> int:
        parts, loaded = options
        own = parts[0]
        assert isinstance(own, _Options)
        num_local_ranks = own.num_local_ranks or own.num_ranks
        machine = dataclasses.replace(Machine.detect(), num_ranks=own.num_ranks, num_local_ranks=num_local_ranks)
        result = preflight.run(loaded, machine, checks_env=True, say=partial(print, file=sys.stderr, flush=True))
        printed = loaded.cli[PRINT_CONFIG.name]
        if own.as_json:
            print(json.dumps(_finite(_as_data(result, parts, printed)), indent=2, allow_nan=False))
            return result.exit_code
        if result.exit_code == 0:
            for title, line in _lines(result, parts):
                print(f"{title:<15} {line}")
            if printed:
                print(format_settings(result.loaded, result.plan, printed))
            sys.stdout.flush()
        code = print_findings(result)
        if code == 0:
            print("ok: this run can start")
        return code


def _lines(result: preflight.Preflight, parts: Sequence[Options]) -> Iterator[tuple[str, str]]:
    """Title and text of each line about a run that can start."""
    spec = result.spec
    assert spec is not None and result.arena_bytes is not None
    yield "preset:", result.loaded.preset_sentence.removeprefix("preset ")
    yield "environment:", str(spec)
    if result.passes_checker:
        yield "checker:", "Gymnasium's check_env found no problem"
    yield from network_lines(spec, result.config)
    if suits_native_core(result.config, result.plan, spec) and (kernels := native.kernels()) is not None:
        yield "native core:", kernels.name
    limit = None if spec.max_episode_steps is None else f"{spec.max_episode_steps:,} steps"
    # A vectorized environment, or one of several agents, may have a limit that it does not tell.
    yield "time limit:", limit or ("unknown" if spec.is_vectorized or spec.agents else "none")
    for action in dict.fromkeys(kind.action for kind in spec.kinds if kind.observation.num_mask):
        if isinstance(action, TreeAction):
            yield "action mask:", mask_layout(action)
    yield from plan_lines(result.plan, result.arena_bytes, result.free_bytes).items()
    for part in parts:
        yield from ((f"{title}:", line) for title, line in part.lines(result))


def _as_data(result: preflight.Preflight, parts: Sequence[Options], printed: bool | str) -> dict[str, object]:
    loaded = result.loaded
    data: dict[str, object] = {
        "ok": result.exit_code == 0,
        "preset": loaded.preset,
        "preset_sentence": loaded.preset_sentence,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "warnings": [dataclasses.asdict(warning) for warning in result.warnings],
        "environment_failure": result.environment_failure,
        "environment": None if result.spec is None else result.spec.to_data(),
        **{name: value for part in parts for name, value in part.data(result).items()},
        "plan": None if result.problems else plan_as_data(result.plan, result.arena_bytes, result.free_bytes),
    }
    if printed and not result.problems:
        values = loaded.config.model_dump(include=set(shown_settings(loaded, printed)))
        data["config"] = {name: {"value": value, "origin": loaded.origins[name]} for name, value in values.items()}
    return data


def _finite(data: Any) -> Any:
    """JSON values with null in place of numbers that JSON does not know, such as infinite bounds of actions."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    return list(map(_finite, data)) if isinstance(data, (list, tuple)) else data


main = _Validate().main
