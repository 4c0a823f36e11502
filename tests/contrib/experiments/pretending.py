"""A fixture for runs that are started but do not train."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contrib.experiments import pretend_train

from asyncrl.contrib.experiments import core_sets, launch, sweep
from asyncrl.contrib.experiments.core_sets import Command, CoreSets


@pytest.fixture
def pretends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets commands pretend to train; the list gets the name of each that is started.

    Only runs with `--track_project=slow`, which may be stopped, are processes.
    """
    folder = Path(__file__).resolve().parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(folder.parents[2])]))
    started: list[str] = []
    start, kill_group = CoreSets.start, core_sets.kill_group

    def start_pretending(sets: CoreSets, command: Command) -> None:
        started.append(command.name)
        if "--track_project=slow" in command.arguments:
            start(sets, dataclasses.replace(command, module="pretend_train"))
            return
        command.log.parent.mkdir(parents=True, exist_ok=True)
        pretend = pretend_train.evaluate if command.module == "asyncrl.evaluate" else pretend_train.train
        with command.log.open("a") as log:
            code = pretend(list(command.arguments), log)
        process = SimpleNamespace(pid=None, returncode=code, poll=lambda: code)
        ended: Any = SimpleNamespace(
            process=process, lifeline=log, threads=command.threads, core_set=len(sets.names), kill_at=None
        )
        sets._running[command.name] = ended

    monkeypatch.setattr(CoreSets, "start", start_pretending)
    monkeypatch.setattr(core_sets, "kill_group", lambda pid: None if pid is None else kill_group(pid))
    for module in (launch, sweep):
        monkeypatch.setattr(module, "check_environment", lambda run, machine, *more: None)
    return started
