"""`python -m asyncrl.validate`: reports every problem of a run's settings, or shows its plan; starts nothing.

A plan is shown only if the settings have no problem: otherwise it would be the plan of a run that cannot exist.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence

from pydantic import PositiveInt

from asyncrl.commands.console import format_networks, format_plan, format_settings, plan_as_data, print_findings
from asyncrl.commands.runner import Command
from asyncrl.commands.validation import Options
from asyncrl.config import hooks
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option, option_flags, parse_options
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.envs.spec import TreeAction, mask_layout
from asyncrl.run import preflight
from asyncrl.storage.run_folder import find_saved_config


class _Options(Options):
    as_json: bool = option(False, "print one JSON object instead of text", flag="json")
    print_config: bool = option(False, "print each setting and where it came from")
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


_Read = tuple[_Options, list[Options], LoadedConfig]


class _Validate(Command[_Read]):
    """Its exit code is 0 if the run can start, and 1 if the environment raised."""

    usage = "python -m asyncrl.validate"
    description = "Check the settings of a training run and show what it would need. Takes the flags of training."
    examples = ("python -m asyncrl.validate --env=Humanoid-v5 --async_rl=False --batch_size=512",)

    def help(self, arguments: Sequence[str], page: str = "all") -> None:
        """`load` prints it, because an algorithm of the user's may have more settings."""

    def read(self, arguments: Sequence[str]) -> _Read:
        features: list[type[Options]] = [hooks.load(place) for place in hooks.hooks("VALIDATION").values()]
        loaded = load(
            arguments,
            [*option_flags(_Options), *(flag for feature in features for flag in option_flags(feature))],
            program=self.usage,
            description=self.description,
            examples=self.examples,
            lenient=True,
            find_saved=find_saved_config,
        )
        given = {name: value for name, value in loaded.cli.items() if value is not None}
        options, refused = parse_options(_Options, given)
        of_features = [parse_options(feature, given) for feature in features]
        refused += [text for _, texts in of_features for text in texts]
        parts = [part for part, _ in of_features if part is not None]
        if options is not None and not refused:
            refused = [text for part in (options, *parts) for text in part.find_problems()]
        if options is None or refused:
            raise UsageError(*refused)
        return options, parts, loaded

    def run(self, options: _Read) -> int:
        return _validate(*options)


def _validate(options: _Options, parts: Sequence[Options], loaded: LoadedConfig) -> int:
    num_local_ranks = options.num_local_ranks or options.num_ranks
    machine = dataclasses.replace(Machine.detect(), num_ranks=options.num_ranks, num_local_ranks=num_local_ranks)
    result = preflight.run(loaded, machine, checks_env=True, say=_say)
    loaded = result.loaded
    if options.as_json:
        print(json.dumps(_as_data(loaded, result, parts, options.print_config), indent=2))
        return result.exit_code
    if not result.problems:
        print(f"{'preset:':<15} {loaded.preset_sentence.removeprefix('preset ')}")
        if result.spec is not None:
            print(f"{'environment:':<15} {result.spec}")
            limit, without = result.spec.max_episode_steps, "none"
            if result.spec.is_vectorized or result.spec.agents:  # which may have one that they do not tell
                without = "unknown"
            print(format_networks(result.spec, result.config))
            print(f"{'time limit:':<15} {without if limit is None else f'{limit:,} steps'}")
            masked = dict.fromkeys(kind.action for kind in result.spec.kinds if kind.observation.num_mask)
            for action in masked:
                if isinstance(action, TreeAction):
                    print(f"{'action mask:':<15} {mask_layout(action)}")
        print(format_plan(result.plan, result.arena_bytes, result.free_bytes))
        for title, line in (shown for part in parts for shown in part.lines(result)):
            print(f"{title + ':':<15} {line}")
        if options.print_config:
            print(format_settings(loaded, result.plan))
        sys.stdout.flush()
    code = print_findings(result)
    if code == 0:
        print("ok: this run can start")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_data(
    loaded: LoadedConfig, result: preflight.Preflight, parts: Sequence[Options], with_config: bool
) -> dict[str, object]:
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
    if with_config and not result.problems:
        data["config"] = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in loaded.config.model_dump().items()
        }
    return data


main = _Validate().main
