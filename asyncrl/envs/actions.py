"""Converts the policy's actions to the environment's: start, unit, bounds, shape and dtype.

Slots keep the action that the distribution produced, together with its log-probability. Only the environment's copy is
squashed, rescaled and clipped:

    policy's number --tanh, if squashed--> number in the unit --center + half_range * number--> clipped to the bounds

The unit of a number with a range is this range: -1 is its low bound and 1 its high bound. All other numbers, and all
numbers of raw actions, have the environment's unit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.observations import nest
from asyncrl.envs.spec import Action, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Path, TreeAction


class ActionAdapter:
    """Converts the policy's actions to the environment's.

    Discrete: `start + i` as int64; several choices likewise. Box: see the module. Dict and Tuple: nested like the
    space.

    Args:
        spec: spaces of the environment.
        mapping: whether continuous actions are rescaled to their bounds, and squashed before that. Squashed actions
            are given as samples before tanh.

    Raises:
        ValueError: actions without finite bounds are to be squashed.
    """

    def __init__(self, spec: EnvSpec, mapping: ActionMapping) -> None:
        if mapping == "squashed" and not can_squash(spec.action):
            raise ValueError(f"the actions of {spec.env_id} cannot be squashed: their bounds are not finite")
        self._is_tree = isinstance(spec.action, TreeAction)
        self._paths = spec.action.paths
        self._sizes = [leaf.size for leaf in spec.action.leaves]
        self._leaves = [
            _BoxLeaf(leaf, mapping) if isinstance(leaf, BoxAction) else _ChoiceLeaf(leaf) for leaf in spec.action.leaves
        ]

    def to_env(self, action: NDArray[Any] | int) -> Any:
        """Converts one action ([A] float32, or an integer) to the argument of `env.step`."""
        return self.to_env_batch(np.asarray(action)[np.newaxis])[0]

    def to_env_batch(self, actions: NDArray[Any]) -> Any:
        """Converts the actions of E environments.

        Args:
            actions: [E, A] float32, or [E] integers for a single choice.

        Returns:
            [E, *shape] in the environment's dtype, or [E] int64, never a view of `actions`; for Dict and Tuple a list
            of E nested actions.
        """
        if not self._is_tree:
            return self._leaves[0].to_env(actions)
        parts = self._leaf_batches(actions)
        return [nest({path: part[env] for path, part in parts.items()}) for env in range(len(actions))]

    def to_vector_env(self, actions: NDArray[Any]) -> Any:
        """As `to_env_batch`, for a vectorized environment: Dict and Tuple of `[E, ...]` arrays."""
        return nest(self._leaf_batches(actions)) if self._is_tree else self.to_env_batch(actions)

    def _leaf_batches(self, actions: NDArray[Any]) -> dict[Path, NDArray[Any]]:
        batches, start = {}, 0
        for path, leaf, size in zip(self._paths, self._leaves, self._sizes, strict=True):
            batches[path] = leaf.to_env(actions[:, start : start + size])
            start += size
        return batches


class _BoxLeaf:
    def __init__(self, action: BoxAction, mapping: ActionMapping) -> None:
        self._shape = action.shape
        self._squashes = mapping == "squashed"
        self._center, self._half_range = unit_of(action, mapping)
        self._dtype = np.dtype(action.dtype)
        self._low = np.asarray(action.low, dtype=self._dtype)
        self._high = np.asarray(action.high, dtype=self._dtype)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        numbers: NDArray[Any] = np.tanh(actions, dtype=self._dtype) if self._squashes else actions.astype(self._dtype)
        numbers *= self._half_range
        numbers += self._center
        np.clip(numbers, self._low, self._high, out=numbers)  # rounding may carry a squashed action past its bound
        return numbers.reshape(len(actions), *self._shape)


class _ChoiceLeaf:
    def __init__(self, action: DiscreteAction | MultiDiscreteAction) -> None:
        self._shape = action.shape
        self._dtype = np.dtype(action.dtype)
        self._starts = np.asarray(action.starts)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        choices: NDArray[Any] = (actions.astype(np.int64) + self._starts).astype(self._dtype, copy=False)
        return choices.reshape(len(actions), *self._shape)


class ActionUnit(NamedTuple):
    """The environment's values for 0 and for a difference of 1, `[A]` in its dtype."""

    center: NDArray[Any]
    half_range: NDArray[Any]


def unit_of(action: BoxAction, mapping: ActionMapping) -> ActionUnit:
    """The unit of continuous actions."""
    dtype = np.dtype(action.dtype)
    is_rescaled = np.logical_and(_has_range(action), mapping != "raw")
    low = np.where(is_rescaled, action.low, -1.0).astype(dtype)
    high = np.where(is_rescaled, action.high, 1.0).astype(dtype)
    return ActionUnit((low + high) / 2, (high - low) / 2)


def can_squash(action: Action) -> bool:
    """Whether every continuous number has a range."""
    return all(_has_range(leaf).all() for leaf in action.leaves if isinstance(leaf, BoxAction))


def has_own_unit(action: Action) -> bool:
    """Whether rescaled actions differ from raw ones, because a range is not [-1, 1]."""
    units = [unit_of(leaf, "rescaled") for leaf in action.leaves if isinstance(leaf, BoxAction)]
    return any((unit.center != 0).any() or (unit.half_range != 1).any() for unit in units)


def _has_range(action: BoxAction) -> NDArray[np.bool_]:
    """For each number, whether both of its bounds are finite.

    Some spaces use the largest number of their dtype instead of infinity. So a bound counts as infinite if twice its
    value overflows the dtype or float32, in which the policy computes.
    """
    largest = min(float(np.finfo(action.dtype).max), float(np.finfo(np.float32).max))
    has_range: NDArray[np.bool_] = np.all(np.abs([action.low, action.high]) <= largest / 2, axis=0)
    return has_range
