"""The schema as its users meet it: one description of each setting, for flags, help and error sentences."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.config.schema import TrainConfig

SECTION_TITLES = {
    "run": "what to train",
    "folder": "the run's folder",
    "evaluation": "evaluation during training",
    "roles": "how the roles work together",
    "samples": "samples",
    "learning": "learning",
    "algorithm": "the algorithm's own settings",
    "replay": "learning from a replay (SAC)",
    "hogwild": "the Hogwild backend",
    "model": "model",
    "supervision": "failures",
    "watching": "output",
}


@dataclass(frozen=True)
class Setting:
    """One setting of the schema.

    Attributes:
        name: its name, also the flag's.
        section: group under which --help shows it.
        description: what it means.
        default: value if nobody gives one.
        expected: its possible values, in words.
        is_text: its value is taken as written, never read as a number or a truth value.
        is_nullable: it may have no value, written as none.
        is_bool: the bare flag means True.
        is_list: the flag takes several values.
    """

    name: str
    section: str
    description: str
    default: Any
    expected: str
    is_text: bool
    is_nullable: bool
    is_bool: bool
    is_list: bool


@functools.lru_cache
def all_settings(schema: type[TrainConfig] = TrainConfig) -> dict[str, Setting]:
    """Every setting by name, in the schema's order; with a subclass also those of an algorithm of the user's."""
    properties = schema.model_json_schema()["properties"]
    return {name: _read_setting(name, schema) for name, schema in properties.items()}


def _read_setting(name: str, schema: Mapping[str, Any]) -> Setting:
    types = {option.get("type") for option in _options(schema)}
    return Setting(
        name=name,
        section=schema.get("section", "algorithm"),
        description=schema.get("description", ""),
        default=schema["default"],
        expected=expected_values(schema),
        is_text=types <= {"string", "null"},
        is_nullable="null" in types,
        is_bool="boolean" in types,
        is_list="array" in types,
    )


def expected_values(schema: Mapping[str, Any], with_none: bool = True) -> str:
    """The possible values of a field in words, from its JSON schema; with or without none, if it may have no value."""
    options = [option for option in _options(schema) if with_none or option.get("type") != "null"]
    return " or ".join(_in_words(option) for option in options)


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    options: list[Mapping[str, Any]] = schema.get("anyOf", [schema])
    return options


def _in_words(option: Mapping[str, Any]) -> str:
    if "const" in option:
        return str(option["const"])
    if "enum" in option:
        return "one of " + ", ".join(str(value) for value in option["enum"])
    if option.get("type") == "array":
        return "a list, each element " + _in_words(option["items"])
    names = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "True or False",
        "string": "text",
        "object": "a JSON object",
        "null": "none",
    }
    return names.get(option.get("type", ""), "a value as the algorithm describes it") + _range_in_words(option)


def _range_in_words(option: Mapping[str, Any]) -> str:
    bounds = {
        "exclusiveMinimum": "greater than",
        "minimum": "at least",
        "exclusiveMaximum": "less than",
        "maximum": "at most",
    }
    parts = [f"{words} {option[key]:.15g}" for key, words in bounds.items() if key in option]
    return " " + " and ".join(parts) if parts else ""
