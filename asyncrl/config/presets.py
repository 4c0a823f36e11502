"""Presets: YAML files with good settings for a family of environments, chosen by the environment's id."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.config.algorithms import Algorithm
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import unknown_name
from asyncrl.config.settings import Setting
from asyncrl.config.yaml_values import read_mapping

_KEYS = ("envs", "settings", "for_env", "for_algo")


@dataclass(frozen=True)
class Preset:
    """One preset file.

    Attributes:
        name: the file's name without its ending.
        path: the file.
        envs: glob patterns of the environment ids that it is for; none if it is taken by its name only.
        settings: values for the algorithms that learn from trajectories.
        for_env: by glob pattern of environment ids, values on top of those.
        for_algo: by algorithm, values on top of those; for one that learns from a replay all there are.
    """

    name: str
    path: Path
    envs: tuple[str, ...]
    settings: dict[str, Any]
    for_env: dict[str, dict[str, Any]]
    for_algo: dict[str, dict[str, Any]]

    def values(self, env_id: str, algorithm: Algorithm, backend: str) -> dict[str, Any]:
        """Values for an environment and an algorithm.

        In the Hogwild backend those for `a3c` lie over those for `a2c`.
        """
        general: dict[str, Any] = {}
        if algorithm.collects == "trajectories":
            general.update(self.settings)
            for pattern, values in self.for_env.items():
                if fnmatch.fnmatchcase(env_id, pattern):
                    general.update(values)
        own = self.for_algo.get("a3c", {}) if (algorithm.name, backend) == ("a2c", "hogwild") else {}
        return {**general, **self.for_algo.get(algorithm.name, {}), **own}


def presets_folder() -> Path:
    """Folder of the shipped presets: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    return sorted(path.stem for path in presets_folder().glob("*.yaml"))


def read_preset(name: str, settings: Mapping[str, Setting]) -> Preset:
    """Reads a shipped preset.

    Raises:
        UsageError: there is no such preset, or its file is not laid out as one.
    """
    names = preset_names()
    if name not in names:
        raise UsageError(str(unknown_name(name, [*names, "none"], f"There is no preset {name!r} ({', '.join(names)})")))
    path = presets_folder() / f"{name}.yaml"
    content = read_mapping(path, settings)
    for key in content:
        if key not in _KEYS:
            raise UsageError(str(unknown_name(key, _KEYS, f"{path} has an unknown key {key!r}")))
    values = content.get("settings", {})
    for_env, for_algo = content.get("for_env", {}), content.get("for_algo", {})
    return Preset(name, path, tuple(content.get("envs", [])), values, for_env, for_algo)


def preset_for(env_id: str, settings: Mapping[str, Setting]) -> Preset | None:
    """The preset one of whose patterns matches the environment's id, None if there is none."""
    for name in preset_names():
        preset = read_preset(name, settings)
        if any(fnmatch.fnmatchcase(env_id, pattern) for pattern in preset.envs):
            return preset
    return None
