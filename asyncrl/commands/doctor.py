"""`asyncrl doctor`: shows what it finds on this machine, trains for ten seconds, and says what to change.

    asyncrl doctor --env=Humanoid-v5

The training leaves no files.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from typing import Any

from pydantic import BaseModel, NonNegativeFloat

from asyncrl.analysis.doctor import Speeds, advise, find_facts, format_facts, format_speeds, measure_speeds
from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.config.machine import Machine
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.status import Record
from asyncrl.processes.children import RunFailed
from asyncrl.processes.main_guard import refuse_to_run_while_imported
from asyncrl.run.dry_start import find_machine_problems
from asyncrl.run.session import NOTHING_TRAINED
from asyncrl.run.trainer import Trainer

_NO_LIMIT = 1_000_000_000_000


class _Options(BaseModel):
    env: str = option("CartPole-v1", "environment that the training steps [default CartPole-v1]")
    seconds: NonNegativeFloat = option(10.0, "length of the training, 0 for none [default 10]")
    as_json: bool = option(False, "print one JSON object instead of text", flag="json")


class _Doctor(Command[_Options]):
    """Its exit code is 0 if a run can train here, and 1 if not."""

    usage = "asyncrl doctor"
    description = "Show what asyncrl finds on this machine, train for ten seconds, and say what to change."
    examples = ("asyncrl doctor", "asyncrl doctor --env=Humanoid-v5 --seconds=30")
    model = _Options

    def run(self, options: _Options) -> int:
        refuse_to_run_while_imported()
        facts = find_facts()
        if not options.as_json:
            print(format_facts(facts), flush=True)
        speeds, failure, code = _try_to_train(options, facts.machine)
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
    """The measured speeds, or why nothing was measured, and the exit code."""
    try:
        if problems := list(find_machine_problems(not machine.shares_words)):
            raise UsageError(*problems)
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
    in_one_process: dict[str, Any] = {} if machine.shares_words else {"serial_mode": True, "async_rl": False}
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


main = _Doctor().main
