"""`python -m asyncrl.validate`: reports every problem of a run's settings, or shows its plan; starts nothing.

A plan is shown only if the settings have no problem: otherwise it would be the plan of a run that cannot exist.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from pydantic import BaseModel, NonNegativeFloat, PositiveFloat, PositiveInt

from asyncrl.cluster.traffic import Network
from asyncrl.commands.console import format_networks, format_plan, format_settings, plan_as_data, print_findings
from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option, parse_options
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.machine import Machine
from asyncrl.envs.spec import TreeAction, mask_layout
from asyncrl.run import preflight
from asyncrl.runtime.run_folder import find_saved_config


class _Options(BaseModel):
    as_json: bool = option(False, "print one JSON object instead of text", flag="json")
    print_config: bool = option(False, "print each setting and where it came from")
    num_ranks: PositiveInt = option(
        1, "ranks that torchrun will start on all machines; shows one rank's plan and the totals [default 1]"
    )
    num_local_ranks: PositiveInt | None = option(
        None, "ranks that torchrun will start on this machine, which share its memory [default all]"
    )
    cluster_bandwidth_mbit: PositiveFloat | None = option(
        None, "with --cluster: Mbit/s of this machine's network each way; shows what it can carry"
    )
    round_trip_ms: NonNegativeFloat = option(
        0.0, "with --cluster: ms of a round trip in the network; with --worker_steps_per_s, shows what it costs"
    )
    worker_steps_per_s: PositiveFloat | None = option(
        None, "with --cluster: environment steps a second of one worker; shows speed and bytes a second"
    )
    wanted_steps_per_s: PositiveFloat | None = option(
        None, "with --cluster and --worker_steps_per_s: shows the pools that make so many environment steps a second"
    )

    @property
    def network(self) -> Network:
        """What is known of the network."""
        return Network(
            self.cluster_bandwidth_mbit, self.round_trip_ms, self.worker_steps_per_s, self.wanted_steps_per_s
        )


class _Validate(Command[tuple[_Options, LoadedConfig]]):
    """Its exit code is 0 if the run can start, and 1 if the environment raised."""

    usage = "python -m asyncrl.validate"
    description = "Check the settings of a training run and show what it would need. Takes the flags of training."
    examples = ("python -m asyncrl.validate --env=Humanoid-v5 --async_rl=False --batch_size=512",)
    model = _Options

    def help(self, arguments: Sequence[str], page: str = "all") -> None:
        """`load` prints it, because an algorithm of the user's may have more settings."""

    def read(self, arguments: Sequence[str]) -> tuple[_Options, LoadedConfig]:
        loaded = load(
            arguments,
            self.flags(),
            program=self.usage,
            description=self.description,
            examples=self.examples,
            lenient=True,
            find_saved=find_saved_config,
        )
        given = {name: value for name, value in loaded.cli.items() if value is not None}
        options, refused = parse_options(_Options, given)
        if options is not None:
            num_local_ranks = options.num_local_ranks or options.num_ranks
            if options.num_ranks % num_local_ranks:
                refused = [
                    f"--num_ranks={options.num_ranks} must be a multiple of --num_local_ranks={num_local_ranks}: every "
                    "machine runs the same number of ranks."
                ]
            if options.worker_steps_per_s is None and (
                options.round_trip_ms > 0.0 or options.wanted_steps_per_s is not None
            ):
                refused = [*refused, "--round_trip_ms and --wanted_steps_per_s need --worker_steps_per_s."]
        if options is None or refused:
            raise UsageError(*refused)
        return options, loaded

    def run(self, options: tuple[_Options, LoadedConfig]) -> int:
        return _validate(*options)


def _validate(options: _Options, loaded: LoadedConfig) -> int:
    num_ranks, num_local_ranks = options.num_ranks, options.num_local_ranks or options.num_ranks
    machine = dataclasses.replace(Machine.detect(), num_ranks=num_ranks, num_local_ranks=num_local_ranks)
    result = preflight.run(loaded, machine, checks_env=True, say=_say)
    loaded = result.loaded
    if options.as_json:
        print(json.dumps(_as_data(loaded, result, options.print_config), indent=2))
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
        if result.traffic is not None:
            lines = result.traffic.describe(options.network)
            print(*(f"{'network:':<15} {line}" for line in lines), sep="\n")
        if options.print_config:
            print(format_settings(loaded, result.plan))
        sys.stdout.flush()
    code = print_findings(result)
    if code == 0:
        print("ok: this run can start")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _as_data(loaded: LoadedConfig, result: preflight.Preflight, with_config: bool) -> dict[str, object]:
    data: dict[str, object] = {
        "ok": result.exit_code == 0,
        "preset": loaded.preset,
        "preset_sentence": loaded.preset_sentence,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "warnings": [dataclasses.asdict(warning) for warning in result.warnings],
        "environment_failure": result.environment_failure,
        "environment": None if result.spec is None else result.spec.to_data(),
        "traffic": None if result.traffic is None else dataclasses.asdict(result.traffic),
        "plan": None if result.problems else plan_as_data(result.plan, result.arena_bytes, result.free_bytes),
    }
    if with_config and not result.problems:
        data["config"] = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in loaded.config.model_dump().items()
        }
    return data


main = _Validate().main
