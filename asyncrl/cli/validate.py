"""`python -m asyncrl.validate`: says what is wrong with a run's settings, or shows its plan, and starts nothing.

A plan is shown only if the settings are right: with a mistake in them there is no run that it could belong to.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.cli.console import print_findings
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.config.printing import format_plan, format_settings, plan_as_data
from asyncrl.run import preflight
from asyncrl.runtime.run_folder import find_saved_config

_FLAGS = (
    ExtraFlag("json", "print one JSON object instead of text"),
    ExtraFlag("print_config", "print each setting and where it came from"),
    ExtraFlag(
        "num_ranks",
        "ranks that torchrun will start on all machines; shows one rank's plan and the totals [default 1]",
        is_bool=False,
    ),
    ExtraFlag(
        "num_local_ranks",
        "ranks that torchrun will start on this machine, which share its memory [default all]",
        is_bool=False,
    ),
)
_EXAMPLES = ("python -m asyncrl.validate --env=Humanoid-v5 --async_rl=False --batch_size=512",)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        0 if the run could start, 2 if something is wrong with the settings, 1 if the environment raised.
    """
    loaded = load(
        sys.argv[1:] if argv is None else argv,
        _FLAGS,
        program="python -m asyncrl.validate",
        description="Check the settings of a training run and show what it would need. Takes the flags of training.",
        examples=_EXAMPLES,
        lenient=True,
        find_saved=find_saved_config,
    )
    try:
        machine = _machine(loaded.cli)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result = preflight.run(loaded, machine, checks_env=True)
    if loaded.cli["json"]:
        print(json.dumps(_as_data(loaded, result), indent=2))
        return result.exit_code
    if not result.problems:
        _print_plan(loaded, result)
    code = print_findings(result)
    if code == 0:
        print("ok: this run can start")
    return code


def _print_plan(loaded: LoadedConfig, result: preflight.Preflight) -> None:
    if loaded.preset is not None:
        print(f"{'preset:':<15} {loaded.preset} ({loaded.preset_path})")
    if result.spec is not None:
        print(f"{'environment:':<15} {result.spec}")
    print(format_plan(result.plan, result.arena_bytes, result.free_bytes))
    if loaded.cli["print_config"]:
        print(format_settings(loaded, result.plan))
    sys.stdout.flush()


def _machine(cli: Mapping[str, Any]) -> Machine:
    """This machine, as one rank of a run with so many of them sees it."""
    num_ranks = _count(cli, "num_ranks", 1)
    num_local_ranks = _count(cli, "num_local_ranks", num_ranks)
    if num_ranks % num_local_ranks:
        raise UsageError(
            f"--num_ranks={num_ranks} must be a multiple of --num_local_ranks={num_local_ranks}: every machine runs "
            "the same number of ranks."
        )
    return dataclasses.replace(Machine.detect(), num_ranks=num_ranks, num_local_ranks=num_local_ranks)


def _count(cli: Mapping[str, Any], name: str, default: int) -> int:
    text = cli[name]
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"--{name}={text} is not possible: expected a whole number at least 1.")
    return int(text)


def _as_data(loaded: LoadedConfig, result: preflight.Preflight) -> dict[str, object]:
    data: dict[str, object] = {
        "ok": result.exit_code == 0,
        "preset": loaded.preset,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "warnings": [dataclasses.asdict(warning) for warning in result.warnings],
        "environment_failure": result.environment_failure,
        "environment": None if result.spec is None else result.spec.to_data(),
        "plan": None if result.problems else plan_as_data(result.plan, result.arena_bytes, result.free_bytes),
    }
    if loaded.cli["print_config"] and not result.problems:
        data["config"] = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in loaded.config.model_dump().items()
        }
    return data
