"""What the roles need to know of an environment's spaces, as plain data that crosses processes as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BoxAction:
    """Continuous actions.

    Attributes:
        shape: shape of one action as the environment takes it.
        low, high: bounds of the flattened action; unbounded ones are infinite.
        dtype: NumPy dtype name in which the environment takes it.
    """

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of action dimensions A."""
        return len(self.low)

    @property
    def is_bounded(self) -> bool:
        """Whether every bound is finite."""
        return all(abs(bound) != float("inf") for bound in self.low + self.high)


@dataclass(frozen=True)
class DiscreteAction:
    """`n` choices; the environment's number for choice i is `start + i`."""

    n: int
    start: int


@dataclass(frozen=True)
class EnvSpec:
    """Spaces and limits of one environment.

    Attributes:
        env_id: the id it was made with.
        observation_size: elements of one observation, which is stored flat as float32.
        observation_dtype: NumPy dtype name in which the environment gives it.
        action: meaning of an action.
        max_episode_steps: time limit in steps, None if there is none or it is not known.
        is_vectorized: whether its registered vectorized implementation is used.
    """

    env_id: str
    observation_size: int
    observation_dtype: str
    action: BoxAction | DiscreteAction
    max_episode_steps: int | None
    is_vectorized: bool = False

    def to_data(self) -> dict[str, Any]:
        """The same as JSON values; infinite bounds become Python's `Infinity`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> EnvSpec:
        """The inverse of `to_data`, after JSON has made lists of tuples."""
        values = dict(data)
        action = values.pop("action")
        if "n" in action:
            return cls(action=DiscreteAction(**action), **values)
        box = BoxAction(tuple(action["shape"]), tuple(action["low"]), tuple(action["high"]), action["dtype"])
        return cls(action=box, **values)
