"""What the rules say about settings, before anything starts."""

from __future__ import annotations

from typing import Any

from asyncrl.config.errors import Problem
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.config.warnings import find_warnings
from asyncrl.modes.choice import find_problems

CPU = Machine(cores=16)


def problems(machine: Machine = CPU, **settings: Any) -> list[Problem]:
    """The problems of a run of CartPole, or of another environment, with these settings."""
    config = TrainConfig(**{"env": "CartPole-v1", **settings})
    return find_problems(config, resolve(config, machine), machine)


def warnings(**settings: Any) -> list[Problem]:
    """The warnings about settings that were all given."""
    config = TrainConfig(**{"env": "CartPole-v1", **settings})
    return list(find_warnings(config, resolve(config, CPU), settings))
