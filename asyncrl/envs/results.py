"""What is wrong with what `reset` and `step` of an environment returned, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_STEP_RETURNS = ("observation", "reward", "terminated", "truncated", "info")


def reset_error_problem(error: TypeError, interface: str = "Gymnasium") -> str | None:
    """What a TypeError of `reset(seed=...)` says, if `reset` does not take the seed; else None."""
    if "unexpected keyword argument 'seed'" not in str(error):
        return None
    return f"reset() does not take a seed; {interface} calls reset(seed=..., options=...)"


def values_problem(result: Any, interface: str = "Gymnasium") -> str | None:
    """Why the result of `step` is not five values, or None."""
    if isinstance(result, tuple) and len(result) == len(_STEP_RETURNS):
        return None
    text = f"step() returned {describe(result)}; {interface} expects 5 values: {', '.join(_STEP_RETURNS)}"
    if isinstance(result, tuple) and len(result) == 4:
        text += ". The older interface has one value, done, instead of terminated and truncated"
    return text


def extra_stats_problem(info: Mapping[str, Any]) -> str | None:
    """Why the numbers of an episode that ended, `episode_extra_stats` and `is_success`, cannot be read, or None."""
    extra_stats, is_success = info.get("episode_extra_stats"), info.get("is_success")
    if not isinstance(extra_stats, (Mapping, type(None))):
        return wrong_value('info["episode_extra_stats"]', extra_stats, "it must be a dict of numbers")
    if is_success is not None and not is_number(is_success):
        return wrong_value('info["is_success"]', is_success, "it must be True, False or a number")
    return None


def is_number(value: Any) -> bool:
    """Whether `float` takes it."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def is_flag(value: Any) -> bool:
    """Whether it is True, False or an integer, also as an array without dimensions."""
    try:
        return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biu"
    except ValueError:  # lists of different lengths
        return False


def describe(result: Any) -> str:
    """The number and the types of what a call returned."""
    if isinstance(result, tuple):
        return f"{len(result)} values ({', '.join(type(value).__name__ for value in result)})"
    return f"one {type(result).__name__}"


def wrong_value(name: str, value: Any, expected: str) -> str:
    return f"step() returned {name} = {str(value)[:80]!r}; {expected}"
