"""Types of the values that settings have, with their ranges."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from asyncrl.config.algorithms import find_algorithm, known_names
from asyncrl.config.env_maker import MakesEnv, as_env
from asyncrl.config.errors import UsageError


def _read_env(given: Any) -> str:
    if isinstance(given, str) or callable(given):
        return as_env(given)
    raise ValueError("give an id, or a callable that makes an environment: a run makes many")


def _check_algo(name: Any, info: ValidationInfo) -> str:
    try:
        find_algorithm(name, info.data.get("import_modules", ()))
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ValueError(str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}") from error
    return str(name)


def read_device(given: Any) -> Any:
    """The name of a device as PyTorch writes it: `gpu` is `cuda`."""
    return re.sub("^gpu(?=:|$)", "cuda", given.lower()) if isinstance(given, str) else given


def _as_json(arguments: dict[str, Any]) -> dict[str, Any]:
    """What a resumed run and an evaluation read from the run's files: keys are text, tuples are lists."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(arguments))
    except (TypeError, ValueError) as error:
        raise ValueError(f"they are saved as JSON, and {error}") from None
    for name, value in read.items():
        if ":" in name and value is None:
            with_space = name.replace(":", ": ")
            raise ValueError(f"{name!r} is not an argument; YAML wants a space after the colon, {with_space!r}")
    return read


def _read_json(given: Any) -> Any:
    """The object of a text that is JSON; any other value unchanged."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            return json.loads(utf8_argument(given))
    return given


def utf8_argument(text: str) -> str:
    """The text of an argument whose bytes are UTF-8, also if the locale's encoding is another one (`LC_ALL=C`)."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError:
        return text


def expand_user(path: Path) -> Path:
    """The path with a home folder in place of `~`, which a shell leaves as it is in `--flag=~/file`."""
    return Path(os.path.expanduser(path))


def _as_text(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def _check_names_of_callbacks(given: Any) -> Any:
    found = given if isinstance(given, (list, tuple)) else (given,)
    if any(hasattr(each, "on_start") for each in found):
        raise ValueError("give observers themselves to Trainer(config, callbacks=[...])")
    return given


Auto = Literal["auto"]
GivenPath = Annotated[Path, AfterValidator(expand_user)]
"""The path of a file or folder that a flag gives."""
PathText = Annotated[str, BeforeValidator(_as_text)]
"""The path of a file or folder as text; it may be given as a `Path`."""
DeviceName = Annotated[str, BeforeValidator(read_device)]
CallbackNames = Annotated[list[str], BeforeValidator(_check_names_of_callbacks)]
EnvArguments = Annotated[dict[str, Any], BeforeValidator(_read_json), AfterValidator(_as_json)]
ImageChannels = Literal["auto", "first", "last"]
ActionMapping = Literal["raw", "rescaled", "squashed"]
"""How continuous actions of the policy are converted for the environment, see `asyncrl.envs.actions`."""
EnvSource = Annotated[
    str | MakesEnv, PlainValidator(_read_env), PlainSerializer(str, return_type=str), WithJsonSchema({"type": "string"})
]
AlgorithmName = Annotated[str, PlainValidator(_check_algo), WithJsonSchema({"type": "string", "enum": known_names()})]
PositiveInt = Annotated[int, Field(gt=0)]
AutoPositiveInt = PositiveInt | Auto
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
AtLeastOne = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
