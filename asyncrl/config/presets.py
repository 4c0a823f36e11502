"""Presets: YAML files with settings that suit a family of environments, chosen by the environment's id."""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.config.algorithms import Algorithm
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import unknown_name
from asyncrl.config.settings import read_mapping

_KEYS = ("envs", "settings", "for_env", "for_algo")


@dataclass(frozen=True)
class Preset:
    """One preset file.

    Attributes:
        name: the file's name without its ending.
        path: the file.
        envs: glob patterns of environment ids; empty if the preset is chosen by its name only.
        settings: values for the algorithms that learn from trajectories.
        for_env: values that override those, by glob pattern of environment ids.
        for_algo: values that override those, by algorithm; an algorithm that learns from a replay takes only these.
    """

    name: str
    path: Path
    envs: tuple[str, ...]
    settings: dict[str, Any]
    for_env: dict[str, dict[str, Any]]
    for_algo: dict[str, dict[str, Any]]

    def values(self, env_id: str, algorithm: Algorithm, backend: str) -> dict[str, Any]:
        """Values for an environment and an algorithm; in the Hogwild backend `a3c` overrides `a2c`."""
        general: dict[str, Any] = {}
        if algorithm.collects == "trajectories":
            general.update(self.settings)
            for pattern, values in self.for_env.items():
                if _matches(env_id, pattern):
                    general.update(values)
        own = self.for_algo.get("a3c", {}) if (algorithm.name, backend) == ("a2c", "hogwild") else {}
        return {**general, **self.for_algo.get(algorithm.name, {}), **own}


def presets_folder() -> Path:
    """Folder of the presets: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    return sorted(path.stem for path in presets_folder().glob("*.yaml"))


def read_preset(name: str) -> Preset:
    """Reads a preset.

    Raises:
        UsageError: there is no such preset, or its file has an unknown key.
    """
    names = preset_names()
    if name not in names:
        raise UsageError(str(unknown_name(name, [*names, "none"], f"There is no preset {name!r} ({', '.join(names)})")))
    path = presets_folder() / f"{name}.yaml"
    return _read(name, path, path.stat().st_mtime_ns)


@functools.lru_cache
def _read(name: str, path: Path, changed_at: int) -> Preset:
    """Reads a file once as long as it is not changed: one start of a run asks several times for the fitting preset."""
    content = read_mapping(path)
    for key in content:
        if key not in _KEYS:
            raise UsageError(str(unknown_name(key, _KEYS, f"{path} has an unknown key {key!r}")))
    settings_by = {key: content.get(key, {}) for key in ("settings", "for_env", "for_algo")}
    return Preset(name, path, tuple(content.get("envs", [])), **settings_by)


def preset_for(env_id: str) -> Preset | None:
    """The preset with a pattern that matches the environment's id, with or without its module; None without one."""
    for name in preset_names():
        preset = read_preset(name)
        if any(_matches(env_id, pattern) for pattern in preset.envs):
            return preset
    return None


def _matches(env_id: str, pattern: str) -> bool:
    """Whether an environment's id fits a pattern; an id without its version, which means the newest one, fits too.

    The module of `module:Id` is left out.
    """
    env_id = env_id.partition(":")[2] or env_id
    return fnmatch.fnmatchcase(env_id, pattern) or fnmatch.fnmatchcase(env_id, pattern.partition("-v")[0])
