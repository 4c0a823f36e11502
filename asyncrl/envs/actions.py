"""What the policy's actions mean to an environment: start, bounds, shape and dtype.

The slots keep the action that the distribution produced, together with its log-probability; only what the environment
gets is clipped or rescaled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.observations import nest
from asyncrl.envs.spec import Action, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction, Path, TreeAction


class ActionAdapter:
    """Turns the policy's actions into the environment's.

    Discrete: `start + i` as int64; several choices likewise. Box: clipped to the bounds where they are finite; with
    `squash`, the policy's action is the sample before tanh, and the environment gets tanh of it, rescaled to
    [low, high]. Dict and Tuple: nested as the space is.

    Args:
        spec: spaces of the environment.
        squash: whether continuous actions are squashed.

    Raises:
        ValueError: `squash` with bounds that are not finite.
    """

    def __init__(self, spec: EnvSpec, squash: bool) -> None:
        if squash and not can_squash(spec.action):
            raise ValueError(f"the actions of {spec.env_id} cannot be squashed: their bounds are not finite")
        self._is_discrete = isinstance(spec.action, DiscreteAction)
        self._is_tree = isinstance(spec.action, TreeAction)
        self._paths = spec.action.paths if isinstance(spec.action, TreeAction) else ((),)
        leaves = spec.action.leaves if isinstance(spec.action, TreeAction) else (spec.action,)
        self._leaves = [_BoxLeaf(leaf, squash) if isinstance(leaf, BoxAction) else _ChoiceLeaf(leaf) for leaf in leaves]

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
    def __init__(self, action: BoxAction, squash: bool) -> None:
        self.size = action.size
        self._shape = action.shape
        self._squash = squash
        self._dtype = np.dtype(action.dtype)
        self._low = np.asarray(action.low, dtype=self._dtype)
        self._high = np.asarray(action.high, dtype=self._dtype)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        if self._squash:
            unit = np.tanh(actions, dtype=self._dtype)
            rescaled: NDArray[Any] = self._low + (unit + 1) * ((self._high - self._low) / 2)
        else:
            rescaled = actions.astype(self._dtype)
        # Rounding may carry a rescaled action past its bound, too.
        np.clip(rescaled, self._low, self._high, out=rescaled)
        return rescaled.reshape(len(actions), *self._shape)


class _ChoiceLeaf:
    def __init__(self, action: DiscreteAction | MultiDiscreteAction) -> None:
        self.size = 1 if isinstance(action, DiscreteAction) else action.size
        self._shape = () if isinstance(action, DiscreteAction) else action.shape
        self._dtype = np.dtype("int64" if isinstance(action, DiscreteAction) else action.dtype)
        self._starts = np.asarray((action.start,) if isinstance(action, DiscreteAction) else action.starts)

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        choices: NDArray[Any] = (actions.astype(np.int64) + self._starts).astype(self._dtype, copy=False)
        return choices.reshape(len(actions), *self._shape)


def can_squash(action: Action) -> bool:
    """Whether [-1, 1] can be rescaled to the bounds: a bound of the dtype's largest number is as good as infinite."""
    if isinstance(action, TreeAction):
        return all(can_squash(leaf) for leaf in action.leaves)
    if not isinstance(action, BoxAction):
        return True
    with np.errstate(over="ignore"):
        extent = np.subtract(action.high, action.low, dtype=np.dtype(action.dtype))
    return action.is_bounded and bool(np.isfinite(extent).all())
