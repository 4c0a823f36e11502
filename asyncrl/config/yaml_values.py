"""Reads scalars and YAML files the way people write them.

PyYAML follows YAML 1.1, where `1e-4` is text, `010` is 8 and `1:30` is 90. Here numbers are what Python takes them for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asyncrl.config.errors import UsageError
from asyncrl.config.settings import Setting


class _Loader(yaml.SafeLoader):
    """A safe loader that knows only null, booleans, whole numbers and decimal numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}


_RESOLVERS = {
    "null": (r"~|null|Null|NULL|none|None|NONE|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "tTfFyYnNoO"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*)?(?:\.[0-9_]*)?(?<=[0-9._])(?:[eE][-+]?[0-9]+)?|[-+]?\.?(?:inf|Inf)|\.?(?:nan|NaN)",
        "-+0123456789.inNI",
    ),
}
for _name, (_pattern, _first) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}",
        re.compile(f"^(?:{_pattern})$"),
        ["" if letter == "\0" else letter for letter in _first],
    )


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))


def _construct_null(loader: _Loader, node: yaml.ScalarNode) -> None:
    loader.construct_scalar(node)


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:null", _construct_null)


def read_scalar(text: str, setting: Setting) -> Any:
    """Reads the text of a flag: unchanged for a text setting unless the text is `none`, as a YAML value otherwise.

    Raises:
        UsageError: the text is no YAML value, such as an unclosed bracket.
    """
    if setting.is_text:
        return None if setting.is_nullable and text in ("none", "None") else text
    if setting.is_list and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        raise UsageError(f"--{setting.name}={text} is not valid YAML or JSON: expected {setting.expected}.") from None


def read_mapping(path: Path, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Reads a YAML file whose top level is a mapping; values of text settings stay as they are written.

    Raises:
        UsageError: the file cannot be read, is no mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"Cannot read the file {path}: {reason}.") from None
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        return _read_node(loader, root, path, settings)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    finally:
        loader.dispose()


def _read_node(loader: _Loader, root: yaml.Node | None, path: Path, settings: Mapping[str, Setting]) -> dict[str, Any]:
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path} must hold `name: value` lines.")
    values: dict[str, Any] = {}
    for key_node, value_node in root.value:
        key = str(key_node.value)
        if key in values:
            raise UsageError(f"{path} has {key} twice, the second time in line {key_node.start_mark.line + 1}.")
        setting = settings.get(key)
        is_null = setting is not None and setting.is_nullable and value_node.tag == "tag:yaml.org,2002:null"
        if setting is not None and setting.is_text and isinstance(value_node, yaml.ScalarNode) and not is_null:
            values[key] = value_node.value
        elif isinstance(value_node, yaml.MappingNode) and key not in settings:
            values[key] = _read_node(loader, value_node, path, settings)
        else:
            values[key] = loader.construct_object(value_node, deep=True)
    return values
