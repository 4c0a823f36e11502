"""A fixture for runs that are started but do not train."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from asyncrl.contrib.experiments import launch, sweep
from asyncrl.contrib.experiments.core_sets import Command, CoreSets

_INSTEAD = {"asyncrl.train": "pretend_train", "asyncrl.evaluate": "pretend_evaluate"}


@pytest.fixture
def pretends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets commands pretend to train; the list gets the name of each that is started."""
    folder = Path(__file__).resolve().parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(folder.parents[2])]))
    started: list[str] = []
    start = CoreSets.start

    def start_pretending(core_sets: CoreSets, command: Command) -> None:
        started.append(command.name)
        start(core_sets, dataclasses.replace(command, module=_INSTEAD[command.module]))

    monkeypatch.setattr(CoreSets, "start", start_pretending)
    for module in (launch, sweep):
        monkeypatch.setattr(module, "check_environment", lambda run, machine, *more: None)
    return started
