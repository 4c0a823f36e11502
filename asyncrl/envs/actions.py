"""What the policy's actions mean to an environment: start, unit, bounds, shape and dtype.

The slots keep the action that the distribution produced, together with its log-probability; only what the environment
gets is squashed, rescaled and clipped:

    policy's number --tanh, if squashed--> number in the unit --center + half_range * number--> clipped to the bounds

The unit of a number that has a range is that range: -1 is its low bound and 1 its high one. Every other number, and
every number of raw actions, is in the environment's own unit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.config.schema import ActionMapping
from asyncrl.envs.observations import nest
from asyncrl.envs.spec import Action, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Path, TreeAction


class ActionAdapter:
    """Turns the policy's actions into the environment's.

    Discrete: `start + i` as int64; several choices likewise. Box: see the module. Dict and Tuple: nested as the space
    is.

    Args:
        spec: spaces of the environment.
        mapping: whether continuous actions are rescaled to their bounds, and squashed before that. Squashed ones are
            samples before tanh.

    Raises:
        ValueError: actions without finite bounds are to be squashed.
    """

    def __init__(self, spec: EnvSpec, mapping: ActionMapping) -> None:
        if mapping == "squashed" and not can_squash(spec.action):
            raise ValueError(f"the actions of {spec.env_id} cannot be squashed: their bounds are not finite")
        self._is_discrete = isinstance(spec.action, DiscreteAction)
        self._is_tree = isinstance(spec.action, TreeAction)
        self._paths = spec.action.paths if isinstance(spec.action, TreeAction) else ((),)
        leaves = spec.action.leaves if isinstance(spec.action, TreeAction) else (spec.action,)
        self._leaves = [
            _BoxLeaf(leaf, mapping) if isinstance(leaf, BoxAction) else _ChoiceLeaf(leaf) for leaf in leaves
        ]

    def to_env(self, action: NDArray[Any] | int) -> Any:
        """Turns one action ([A] float32, or an integer) into what `env.step` gets."""
        return self.to_env_batch(np.asarray(action)[np.newaxis])[0]

    def to_env_batch(self, actions: NDArray[Any]) -> Any:
        """Turns the actions of E environments into what they get, one each.

        Args:
            actions: [E, A] float32, or [E] integers for a single choice.

        Returns:
            [E, *shape] in the environment's dtype, or [E] int64, never a view of `actions`; for Dict and Tuple a list
            of E nested actions.
        """
        if not self._is_tree:
            return self._leaves[0].to_env(actions[:, np.newaxis] if self._is_discrete else actions)
        parts = self._leaf_batches(actions)
        return [nest({path: part[env] for path, part in parts.items()}) for env in range(len(actions))]

    def to_vector_env(self, actions: NDArray[Any]) -> Any:
        """The same as a vectorized environment takes it: Dict and Tuple of `[E, ...]` arrays."""
        return nest(self._leaf_batches(actions)) if self._is_tree else self.to_env_batch(actions)

    def _leaf_batches(self, actions: NDArray[Any]) -> dict[Path, NDArray[Any]]:
        batches, start = {}, 0
        for path, leaf in zip(self._paths, self._leaves, strict=True):
            batches[path] = leaf.to_env(actions[:, start : start + leaf.size])
            start += leaf.size
        return batches


class _BoxLeaf:
    def __init__(self, action: BoxAction, mapping: ActionMapping) -> None:
        self.size = action.size
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
        # Rounding may carry a squashed action past its bound, too.
        np.clip(numbers, self._low, self._high, out=numbers)
        return numbers.reshape(len(actions), *self._shape)


class _ChoiceLeaf:
    def __init__(self, action: DiscreteAction | MultiDiscreteAction) -> None:
        self.size = 1 if isinstance(action, DiscreteAction) else action.size
        self._shape = () if isinstance(action, DiscreteAction) else action.shape
        self._dtype = np.dtype("int64" if isinstance(action, DiscreteAction) else action.dtype)
        self._starts = np.asarray((action.start,) if isinstance(action, DiscreteAction) else action.starts)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        choices: NDArray[Any] = (actions.astype(np.int64) + self._starts).astype(self._dtype, copy=False)
        return choices.reshape(len(actions), *self._shape)


class ActionUnit(NamedTuple):
    """What 0 and a step of 1 of each number are to the environment, `[A]` in its dtype."""

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
    """Whether every continuous number has a range to be squashed to."""
    return all(_has_range(leaf).all() for leaf in _box_leaves(action))


def has_own_unit(action: Action) -> bool:
    """Whether rescaled actions differ from raw ones: not where all ranges are [-1, 1]."""
    units = [unit_of(leaf, "rescaled") for leaf in _box_leaves(action)]
    return any((unit.center != 0).any() or (unit.half_range != 1).any() for unit in units)


def _box_leaves(action: Action) -> list[BoxAction]:
    leaves = action.leaves if isinstance(action, TreeAction) else (action,)
    return [leaf for leaf in leaves if isinstance(leaf, BoxAction)]


def _has_range(action: BoxAction) -> NDArray[np.bool_]:
    """For each number whether both of its bounds are finite, or small enough to be meant so.

    Some spaces have the largest number of their dtype where they mean infinity. A bound is taken for infinite if twice
    as much overflows the dtype or float32, in which the policy computes.
    """
    largest = min(float(np.finfo(action.dtype).max), float(np.finfo(np.float32).max))
    has_range: NDArray[np.bool_] = np.all(np.abs([action.low, action.high]) <= largest / 2, axis=0)
    return has_range
