"""A fixture for runs that are started but do not train."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from asyncrl.experiments import launch, sweep
from asyncrl.experiments.slots import Command, Slots

_INSTEAD = {"asyncrl.train": "pretend_train", "asyncrl.evaluate": "pretend_evaluate"}


@pytest.fixture
def pretends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets commands pretend to train; the list gets the name of each that is started."""
    tests = Path(__file__).resolve().parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests.parent)]))
    started: list[str] = []
    start = Slots.start

    def start_pretending(slots: Slots, command: Command) -> None:
        started.append(command.name)
        start(slots, dataclasses.replace(command, module=_INSTEAD[command.module]))

    monkeypatch.setattr(Slots, "start", start_pretending)
    for module in (launch, sweep):
        monkeypatch.setattr(module, "check_environment", lambda run, machine, *more: None)
    return started
