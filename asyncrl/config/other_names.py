"""Names of settings in other libraries: the error about an unknown flag names the setting here.

The names are in `other_names.yaml` beside this file, which is read at the first unknown name; features bring others.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asyncrl.config.hooks import hooks

COMMON_NAMES = "Common names"
"""The library of names that several libraries and programs have."""


@dataclass(frozen=True)
class OtherName:
    """A name in another library.

    Attributes:
        library: the library, or `COMMON_NAMES`.
        setting: the setting here; empty if there is none.
        note: the difference, or the alternative if there is no such setting.
    """

    library: str
    setting: str
    note: str = ""


@functools.cache
def other_names() -> dict[str, OtherName]:
    """All names, by the name there."""
    found = {}
    for library, names in _data()["names"].items():
        for name, entry in names.items():
            found[name] = OtherName(library, *([entry] if isinstance(entry, str) else entry))
    return found | {name: OtherName(*entry) for name, entry in hooks("OTHER_NAMES").items()}


def other_meaning(setting: str, value: str) -> str | None:
    """The meaning here of a value that another library has for this setting; None for other values."""
    meaning: str | None = _data()["values"].get(setting, {}).get(value.lower())
    return meaning


def explain_name(name: str, known: Container[str]) -> str | None:
    """A clause that explains a name of another library; None for other names, or if `known` lacks the setting."""
    other = other_names().get(name)
    if other is None or (other.setting or "env") not in known:  # `known` may be the names of presets, for example
        return None
    whose = "" if other.library == COMMON_NAMES else f"{other.library}'s "
    if not other.setting:
        return f"{whose}{name} has no counterpart here: {other.note}"
    return f"{whose}{name} is --{other.setting}" + (f" ({other.note})" if other.note else "")


@functools.cache
def _data() -> dict[str, Any]:
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data
