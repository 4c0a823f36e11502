"""The schema as users see it: a description of each setting, and how its value is read from a flag or a YAML file.

Help, error sentences, shell completion and the reading of values follow from `all_settings`. PyYAML follows YAML 1.1,
where `1e-4` is text, `010` is 8 and `1:30` is 90; here numbers are what Python takes them for. `dump_mapping` writes
files that mean the same by both rules.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import TrainConfig
from asyncrl.config.value_types import expand_user, utf8_argument

SECTION_TITLES = {
    "run": "what to train",
    "folder": "the run's folder",
    "evaluation": "evaluation during training",
    "roles": "how the roles work together",
    "samples": "samples",
    "learning": "learning",
    "algorithm": "the algorithm's own settings",
    "replay": "learning from a replay (SAC, TD3, DQN)",
    "hogwild": "the Hogwild backend",
    "model": "model",
    "policies": "several policies",
    "supervision": "failures",
    "watching": "output",
    **{key: title for key, (_, title) in hooks("SETTINGS").items() if title},
}


@dataclass(frozen=True)
class Setting:
    """One setting of the schema.

    Attributes:
        name: its name, and that of its flag.
        section: key of `SECTION_TITLES`, under which --help shows it.
        description: its meaning, for --help.
        default: value if no source gives one.
        expected: its possible values, in words.
        is_text: its value is taken as written, never read as a number or a truth value.
        is_nullable: it may have no value, written as none.
        is_bool: the flag without a value means True.
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
def all_settings(config_type: type[TrainConfig] = TrainConfig) -> dict[str, Setting]:
    """Every setting by name, in the schema's order; of a subclass also the own settings of its algorithm."""
    settings = {}
    for name, schema in config_type.model_json_schema()["properties"].items():
        types = {option.get("type") for option in schema.get("anyOf", [schema])}
        settings[name] = Setting(
            name=name,
            section=schema.get("section", "algorithm"),
            description=schema.get("description", ""),
            default=config_type.model_fields[name].get_default(call_default_factory=True),
            expected=expected_values(schema),
            is_text=types <= {"string", "null"},
            is_nullable="null" in types,
            is_bool="boolean" in types,
            is_list="array" in types,
        )
    return settings


_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "True or False",
    "string": "text",
    "object": "a JSON object",
    "null": "none",
}
_BOUNDS = {
    "exclusiveMinimum": "greater than",
    "minimum": "at least",
    "exclusiveMaximum": "less than",
    "maximum": "at most",
}


def expected_values(schema: Mapping[str, Any], with_none: bool = True) -> str:
    """The possible values of a field in words, from its JSON schema; none is left out unless `with_none`."""
    options = [option for option in schema.get("anyOf", [schema]) if with_none or option.get("type") != "null"]
    return " or ".join(map(_in_words, options))


def _in_words(option: Mapping[str, Any]) -> str:
    if "const" in option:
        return str(option["const"])
    if "enum" in option:
        return "one of " + ", ".join(map(str, option["enum"]))
    if option.get("type") == "array":
        return "a list, each element " + _in_words(option["items"])
    bounds = " and ".join(f"{words} {option[key]:.15g}" for key, words in _BOUNDS.items() if key in option)
    kind = _TYPES.get(option.get("type", ""), "a value as the algorithm describes it")
    return f"{kind} {bounds}".rstrip()


class _Loader(yaml.SafeLoader):
    """A safe loader that knows only null, booleans, whole numbers and decimal numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader` or YAML 1.1 would take for another type."""


_RESOLVERS = {
    "null": (r"~|null|Null|NULL|none|None|NONE|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", [*"tTfFyYnNoO"]),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", [*"-+0123456789"]),
    "float": (
        r"[-+]?(?=\.?[0-9])(?:[0-9][0-9_]*)?(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|[-+]?\.?(?:inf|Inf)|\.?(?:nan|NaN)",
        [*"-+0123456789.inNI"],
    ),
}
for _name, (_pattern, _first_letters) in _RESOLVERS.items():
    for _type in (_Loader, _Dumper):
        _type.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first_letters)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:null", lambda loader, node: None)


def read_scalar(text: str, setting: Setting) -> Any:
    """Reads the text of a flag: unchanged for a text setting unless the text is `none`, as a YAML value otherwise.

    Raises:
        UsageError: the text is not a YAML value, such as an unclosed bracket.
    """
    if setting.is_text:
        return None if setting.is_nullable and text in ("none", "None") else text
    text = utf8_argument(text)
    if setting.is_list and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise UsageError(f"--{setting.name}={text} is not valid YAML or JSON: expected {setting.expected}.") from None


def read_mapping(path: Path, settings: Mapping[str, Setting] | None = None) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping; values of text settings stay as they are written.

    A setting's name may have `-` in place of `_`.

    Args:
        path: the file.
        settings: known settings by name; None for those of the package.

    Raises:
        UsageError: the file cannot be read, is not a mapping, or has a key twice or a tag (`!name`), which would give a
            value another type than its text shows.
    """
    path = expand_user(path)
    with _parsed(path, _Loader) as (loader, root):
        return {} if root is None else _read_node(loader, root, path, settings or all_settings())


def read_saved_values(path: Path) -> dict[str, Any]:
    """Reads the config.yaml of a run, whose settings may be those of an algorithm that is not known yet.

    Raises:
        UsageError: as for `read_mapping`, or the file is empty.
    """
    with _parsed(path, yaml.SafeLoader) as (loader, root):
        if root is None:
            raise UsageError(f"{path} is empty: expected the settings of a run.")
        return {key: loader.construct_object(node, deep=True) for key, node in _entries(root, path, {})}


def dump_mapping(values: Mapping[str, Any]) -> str:
    """The values as YAML in their order, from which `read_mapping`, `read_saved_values` and PyYAML read the same."""
    text: str = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False)
    return text


@contextlib.contextmanager
def _parsed(
    path: Path, loader_type: type[yaml.SafeLoader]
) -> Iterator[tuple[yaml.SafeLoader, yaml.MappingNode | None]]:
    """Gives the loader and the top level of a file, None for an empty file; mistakes in it become a UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"Cannot read the file {path}: {reason}.") from None
    loader = loader_type(text)
    try:
        for event in yaml.parse(text):
            if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
                where = "" if event.start_mark is None else f" in line {event.start_mark.line + 1}"
                raise UsageError(f"{path} has the tag {event.tag}{where}: values have no tags here.")
        root = loader.get_single_node()
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise UsageError(f"{path} must hold `name: value` lines.")
        yield loader, root
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that does not exist
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    finally:
        loader.dispose()


def _entries(root: yaml.MappingNode, path: Path, settings: Mapping[str, Setting]) -> Iterator[tuple[str, yaml.Node]]:
    """Keys and values of a mapping; raises a UsageError at the second of two equal keys."""
    seen = set()
    for key_node, value_node in root.value:
        key = str(key_node.value)
        if key not in settings and key.replace("-", "_") in settings:
            key = key.replace("-", "_")
        if key in seen:
            raise UsageError(f"{path} has {key} twice, the second time in line {key_node.start_mark.line + 1}.")
        seen.add(key)
        yield key, value_node


def _read_node(
    loader: yaml.SafeLoader, root: yaml.MappingNode, path: Path, settings: Mapping[str, Setting]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value_node in _entries(root, path, settings):
        setting = settings.get(key)
        is_null = setting is not None and setting.is_nullable and value_node.tag == "tag:yaml.org,2002:null"
        if setting is not None and setting.is_text and isinstance(value_node, yaml.ScalarNode) and not is_null:
            values[key] = value_node.value
        elif isinstance(value_node, yaml.MappingNode) and setting is None:
            values[key] = _read_node(loader, value_node, path, settings)
        elif setting is None and isinstance(value_node, yaml.SequenceNode) and _are_mappings(value_node.value):
            values[key] = [_read_node(loader, node, path, settings) for node in value_node.value]
        else:
            values[key] = loader.construct_object(value_node, deep=True)
    return values


def _are_mappings(nodes: list[yaml.Node]) -> bool:
    return bool(nodes) and all(isinstance(node, yaml.MappingNode) for node in nodes)
