"""Finds optional features: the folders of `asyncrl.contrib`, and packages of others.

A feature has a module with some of these names, each a dict. The module imports nothing heavy, so it names functions
as text, `module:function`.

    ALGORITHMS  name in `--algo`: its `asyncrl.config.algorithms.Algorithm`
    COMMANDS    name of a command: (its module, which has `main(argv)`, and what it does)
    COMPLETIONS name of a command: what the shell completes after it, `settings` for the flags of training
    CRITICS     name of a feature: function from the settings to its `asyncrl.config.critic_kinds.CriticKind`, or None
    ENV_MAKERS  package in `--env=package:name`: function from the name to the callable that makes the environment
    FOLDERS     folder in a run's folder: what it has; deleted when the run begins again at step 0
    FORMATS     name in `Policy.export`: (its `asyncrl.inference.policy.WritePolicy`, suffix of its files)
    LOCATIONS   beginning of an address: function from the address of a run to its folder
    METRICS     published name, capitals for what varies: (its meaning, its title on the dashboard or None)
    MISLEADING  name of a feature: function of settings and `EnvSpec` to why training returns choose no best, or None
    NEEDS       name of a setting of the core: values that settings of the feature must have so that a run reads it
    OBSERVERS   name of a feature: function of settings to the `asyncrl.observers.observer.Observer` of a run, or None
    OTHER_NAMES name of a setting in another library: (the library, the setting here, the difference)
    PLAYERS     name of a feature: its `asyncrl.commands.player_options.PlayerOption` of `evaluate` or `enjoy`
    PLOTS       command of `asyncrl plot`, whose figures a report has, too: its `asyncrl.analysis.plots.Plot`
    REPLAYS     name of a feature: function from the settings to its `asyncrl.config.replay_kinds.ReplayKind`, or None
    RULES       name of a feature: function of settings and plan to the problems of a run, `asyncrl.config.checks`
    SETTINGS    name of a feature: (its `asyncrl.config.sections.section.Section`, title in --help of the section with
                the feature's name; empty if its settings are shown in sections of the core)
    SIMULATORS  package of an environment's class: (simulator's name, class that wraps it, whether it takes `num_envs`)
    SPEC_RULES  name of a feature: function of settings, plan and `EnvSpec` to the problems, `asyncrl.run.preflight`
    TRACKERS    name in `--track`: (its `asyncrl.observers.trackers.Connect`, the library that it needs)
    VALIDATION  name of a feature: its `asyncrl.commands.validation.Options`
    VALUE_SETS  name of a setting: function of its value, the `asyncrl.config.algorithms.Algorithm` and whether a GPU
                trains, to the values of other settings that it stands for
    WARNINGS    name of a feature: function of settings and plan to what is possible but probably a mistake
    WORKERS     name of a feature: function of saved settings to the rollout workers that it adds to `--num_workers`

A package of others names its module as an entry point of the group `asyncrl.contrib`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_PACKAGE = "asyncrl.contrib"


@functools.cache
def hooks(name: str) -> dict[str, Any]:
    """The entries of this name of all features that are installed."""
    return {key: value for module in _modules() for key, value in getattr(module, name, {}).items()}


def load(place: str) -> Any:
    """What a hook names as `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(name) for name in _names())


def _names() -> Iterator[str]:
    try:
        folders = importlib.import_module(_PACKAGE).__path__
    except ModuleNotFoundError:
        folders = []
    for found in pkgutil.iter_modules(folders):
        if found.ispkg:
            yield f"{_PACKAGE}.{found.name}.hooks"
    for entry in importlib.metadata.entry_points(group=_PACKAGE):
        yield entry.value
