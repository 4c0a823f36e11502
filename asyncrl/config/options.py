"""Flags of a command that are no settings of a run, as fields of a pydantic model: types, help and errors in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from asyncrl.config.flags import ExtraFlag
from asyncrl.config.problems import refused_value
from asyncrl.config.settings import expected_values

Options = TypeVar("Options", bound=BaseModel)


def option(default: Any, description: str, expected: str | None = None, *, flag: str | None = None) -> Any:
    """Returns a field of a model of options.

    Args:
        default: value if the flag is not given.
        description: for --help.
        expected: its possible values, for errors; by default they follow from the field's type.
        flag: the flag's name, if it is not the field's.
    """
    return Field(default, alias=flag, description=description, json_schema_extra={"expected": expected})


def option_flags(model: type[BaseModel], names: Iterable[str] | None = None) -> tuple[ExtraFlag, ...]:
    """Returns the flags of a model's fields that have a description, or of those that are named."""
    fields = {field.alias or name: field for name, field in model.model_fields.items() if field.description}
    chosen = {name: fields[name] for name in fields if names is None or name in names}
    return tuple(
        ExtraFlag(name, field.description or "", is_bool=field.annotation is bool) for name, field in chosen.items()
    )


def parse_options(model: type[Options], values: Mapping[str, Any]) -> tuple[Options | None, list[str]]:
    """Reads options from the texts of flags, by the flags' names, and values of other fields.

    Returns:
        The options, None if a text is refused; and a sentence for each one that is.
    """
    try:
        return model.model_validate(values), []
    except ValidationError as error:
        refused = dict.fromkeys(str(item["loc"][0]) for item in error.errors())
    schemas = model.model_json_schema()["properties"]
    expected = {
        name: schemas[name].get("expected") or expected_values(schemas[name], with_none=False) for name in refused
    }
    return None, [refused_value(name, values[name], expected[name]) for name in refused]
