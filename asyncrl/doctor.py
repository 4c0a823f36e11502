"""`python -m asyncrl.doctor`: shows what it finds on this machine, trains for ten seconds, and says what to change.

    python -m asyncrl.doctor --env=Humanoid-v5

The training leaves no files.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, NonNegativeFloat

import asyncrl.runtime.one_blas_thread  # noqa: F401
from asyncrl.analysis.doctor import Speeds, advise, find_facts, format_facts, format_speeds, measure_speeds
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help, option, option_flags, parse_options, split_flags
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.monitoring.status import Record
from asyncrl.observers.observer import Observer, Run
from asyncrl.run.dry_start import find_machine_problems
from asyncrl.run.session import NOTHING_TRAINED
from asyncrl.run.trainer import Trainer
from asyncrl.runtime.main_guard import refuse_to_run_while_imported
from asyncrl.runtime.processes import RunFailed
from asyncrl.runtime.reader import run_for_a_reader

_NO_LIMIT = 1_000_000_000_000
_DESCRIPTION = "Show what asyncrl finds on this machine, train for ten seconds, and say what to change."
_EXAMPLES = ("python -m asyncrl.doctor", "python -m asyncrl.doctor --env=Humanoid-v5 --seconds=30")


class _Options(BaseModel):
    env: str = option("CartPole-v1", "environment that the training steps [default CartPole-v1]")
    seconds: NonNegativeFloat = option(10.0, "length of the training, 0 for none [default 10]")
    as_json: bool = option(False, "print one JSON object instead of text", flag="json")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 if a run can train here, 1 if not, 2 for a user's mistake."""
    refuse_to_run_while_imported()
    arguments = sys.argv[1:] if argv is None else list(argv)
    flags = option_flags(_Options)
    if {"--help", "-h"} & set(arguments):
        print(format_help("python -m asyncrl.doctor", _DESCRIPTION, {}, flags, _EXAMPLES))
        return 0
    texts, wrong = split_flags(arguments, {}, flags)
    options, refused = parse_options(_Options, texts)
    if options is None or wrong or refused:
        print(*(f"error: {text}" for text in [*map(str, wrong), *refused]), sep="\n", file=sys.stderr)
        return 2
    facts = find_facts()
    if not options.as_json:
        print(format_facts(facts), flush=True)
    try:
        speeds, failure, code = _try_to_train(options, facts.machine)
    except KeyboardInterrupt:
        return 130
    advice = list(advise(facts, speeds))
    if options.as_json:
        measured = None if speeds is None else dataclasses.asdict(speeds)
        found = {"facts": dataclasses.asdict(facts), "speeds": measured, "failure": failure, "advice": advice}
        print(json.dumps(found, indent=2), flush=True)
        return code
    if speeds is not None:
        print(format_speeds(speeds))
    if advice:
        print("\nto change:", *(f"  * {text}" for text in advice), sep="\n")
    elif failure is None:
        print("\nnothing to change")
    sys.stdout.flush()
    if failure is not None:
        print(f"error: The training failed: {failure}", file=sys.stderr)
    return code


def _try_to_train(options: _Options, machine: Machine) -> tuple[Speeds | None, str | None, int]:
    """The measured speeds, or why there are none, and the exit code."""
    try:
        if problems := list(find_machine_problems(not machine.keeps_store_order)):
            raise UsageError("\n".join(map(str, problems)))
        if options.seconds == 0:
            return None, None, 0
        if not options.as_json:
            print(f"\ntraining {options.env} for {options.seconds:g} s ...", flush=True)
        return _train(options.env, options.seconds, machine), None, 0
    except UsageError as error:
        return None, str(error), 2
    except EnvironmentFailed as error:
        return None, str(error), 1
    except RunFailed as error:
        if NOTHING_TRAINED in error.summary:
            longer = f"give it more time, such as --seconds={6 * options.seconds:g}"
            return None, f"{NOTHING_TRAINED} in {options.seconds:g} s: {longer}.", 1
        return None, "\n".join(filter(None, (error.details, str(error)))), 1


class _Records(Observer):
    """Keeps the plan and the records of a run, whose folder is deleted."""

    plan: ResourcePlan

    def __init__(self) -> None:
        self.records: list[Record] = []

    def on_start(self, run: Run) -> None:
        self.plan = run.plan

    def on_record(self, run: Run, record: Record) -> None:
        self.records.append(record)


def _train(env: str, seconds: float, machine: Machine) -> Speeds:
    """Trains as a new user would, with the environment's preset, but in one process where several are not possible."""
    in_one_process: dict[str, Any] = {} if machine.keeps_store_order else {"serial_mode": True, "async_rl": False}
    with tempfile.TemporaryDirectory(prefix="asyncrl-doctor-") as folder:
        config = TrainConfig(
            env=env,
            train_for_env_steps=_NO_LIMIT,
            train_for_seconds=seconds,
            train_dir=folder,
            experiment="doctor",
            profile=True,
            report_every_s=min(1.0, seconds / 4),
            with_tensorboard=False,
            **in_one_process,
        )
        watcher = _Records()
        result = Trainer(config, [watcher]).run()
        return measure_speeds(watcher.records, watcher.plan, result.summary.fps)


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
