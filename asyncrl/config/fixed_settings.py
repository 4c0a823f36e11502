"""The settings that give the tensors of a checkpoint their shapes and their meaning."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from asyncrl.config.dependencies import missing_for
from asyncrl.config.flags import format_value
from asyncrl.config.schema import OF_ONE_START, TrainConfig


def _fixed(*kinds: str) -> tuple[str, ...]:
    fields = TrainConfig.model_fields.items()
    extras = {name: field.json_schema_extra for name, field in fields}
    return tuple(name for name, extra in extras.items() if isinstance(extra, dict) and extra["fixed"] in kinds)


FIXED = _fixed("run", "networks")
"""Settings that a resumed run keeps: its task, and those that give the numbers in a checkpoint their meaning."""

OF_NETWORKS = set(_fixed("networks"))
"""Those of `FIXED` with which a new run takes from a checkpoint the tensors of the policy that fit."""


@dataclass(frozen=True)
class Change:
    """A setting with another value than when the run was last started."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name}: {as_given(self.before)} -> {as_given(self.now)}"


def changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """The settings that differ, except for those of one start of the program."""
    old, new = before.model_dump(), now.model_dump()
    names = [name for name in old if name in new and name not in OF_ONE_START]
    return [Change(name, old[name], new[name]) for name in names if old[name] != new[name]]


def is_fixed(name: str, config: TrainConfig) -> bool:
    """Whether a setting is in `FIXED` and the run reads it."""
    return name in FIXED and missing_for(name, config) is None


def fixed_changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """Changes of settings in `FIXED` that the run reads.

    An environment whose name in its module is the same may have moved to another module; its spaces are compared later.
    """
    return [each for each in changes(before, now) if is_fixed(each.name, now) and not _has_moved(each)]


def _has_moved(change: Change) -> bool:
    """Whether the change is an environment's name in another module."""
    return change.name == "env" and change.before.rpartition(":")[2] == change.now.rpartition(":")[2]


def fixed_settings_digest(config: TrainConfig) -> str:
    """SHA-256 of the settings for which `is_fixed` is true and of the environment's arguments.

    Weights of runs with different digests mean something else, even if their shapes are the same.
    """
    names = {"env_kwargs", *(name for name in FIXED if is_fixed(name, config))}
    values = config.model_dump(mode="json", include=names)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def as_given(value: Any) -> str:
    """A value as a user gives it."""
    return str(value) if isinstance(value, list) else format_value(value)
