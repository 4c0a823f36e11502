"""The conditions under which a run reads a setting; `asyncrl.config.sections` has them beside each setting.

A setting without a condition is read by every run, or `asyncrl.config.checks` refuses it in runs that do not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from asyncrl.config.algorithms import BUILT_IN, find_algorithm
from asyncrl.config.flags import format_value
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import TrainConfig
from asyncrl.config.sections.section import IS_SET


def conditions_of(name: str) -> Mapping[str, tuple[Any, ...]]:
    """Values that other settings must have so that a run reads this one, by name; * matches any text."""
    field = TrainConfig.model_fields.get(name)
    extra = None if field is None else field.json_schema_extra
    needs: Any = extra.get("needs") if isinstance(extra, dict) else None
    return {**(needs or {}), **hooks("NEEDS").get(name, {})}


def missing_for(name: str, config: TrainConfig, inference_mode: str | None = None) -> str | None:
    """The condition, as text, that a setting needs to have an effect and that `config` does not meet; None without one.

    Args:
        name: the setting.
        config: all settings.
        inference_mode: the resolved value of `config.inference_mode`.
    """
    for other, values in conditions_of(name).items():
        value = getattr(config, other)
        if other == "algo" and value not in (*BUILT_IN, *values):
            # Another algorithm may read all settings that are for its kind of samples.
            kinds = {find_algorithm(each).collects for each in values if each in BUILT_IN}
            if config.algorithm.collects in kinds and name not in config.algorithm.ignores:
                continue
        if other == "algo" and (config.algo, config.backend) == ("a2c", "hogwild"):
            value = "a3c"
        if other == "inference_mode" and inference_mode is not None:
            value = inference_mode
        if values is IS_SET and value in (None, []):
            return other
        if values is not IS_SET and not any(_is_like(value, wanted) for wanted in values):
            return f"{other}={' or '.join(map(format_value, values))}"
    return None


def _is_like(value: Any, wanted: Any) -> bool:
    return fnmatchcase(value, wanted) if isinstance(value, str) else bool(value == wanted)
