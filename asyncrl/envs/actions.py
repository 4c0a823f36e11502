"""What the policy's actions mean to an environment: start, bounds, shape and dtype.

The slots keep the action that the distribution produced, together with its log-probability; only what the environment
gets is clipped or rescaled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec


class ActionAdapter:
    """Turns the policy's actions into the environment's.

    Discrete: `start + i` as int64. Box: clipped to the bounds where they are finite; with `squash`, the policy's action
    is the sample before tanh, and the environment gets tanh of it, rescaled to [low, high].

    Args:
        spec: spaces of the environment.
        squash: whether actions are squashed; has no meaning for Discrete.

    Raises:
        ValueError: `squash` with bounds that are not finite.
    """

    def __init__(self, spec: EnvSpec, squash: bool) -> None:
        self._action = spec.action
        self._squash = squash
        if isinstance(spec.action, BoxAction):
            if squash and not can_squash(spec.action):
                raise ValueError(f"the actions of {spec.env_id} cannot be squashed: their bounds are not finite")
            self._dtype = np.dtype(spec.action.dtype)
            self._low = np.asarray(spec.action.low, dtype=self._dtype)
            self._high = np.asarray(spec.action.high, dtype=self._dtype)

    def to_env(self, action: NDArray[Any] | int) -> Any:
        """Turns one action ([A] float32, or an integer) into what `env.step` gets."""
        return self.to_env_batch(np.asarray(action)[np.newaxis])[0]

    def to_env_batch(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Turns the actions of E environments into what they get, one row each.

        Args:
            actions: [E, A] float32, or [E] integers.

        Returns:
            [E, *shape] in the environment's dtype, or [E] int64; never a view of `actions`.
        """
        if isinstance(self._action, DiscreteAction):
            choices: NDArray[np.int64] = actions.astype(np.int64)
            choices += self._action.start
            return choices
        if self._squash:
            unit = np.tanh(actions, dtype=self._dtype)
            rescaled: NDArray[Any] = self._low + (unit + 1) * ((self._high - self._low) / 2)
        else:
            rescaled = actions.astype(self._dtype)
        # Rounding may carry a rescaled action past its bound, too.
        np.clip(rescaled, self._low, self._high, out=rescaled)
        return rescaled.reshape(len(actions), *self._action.shape)


def can_squash(action: BoxAction) -> bool:
    """Whether [-1, 1] can be rescaled to the bounds: a bound of the dtype's largest number is as good as infinite."""
    with np.errstate(over="ignore"):
        extent = np.subtract(action.high, action.low, dtype=np.dtype(action.dtype))
    return action.is_bounded and bool(np.isfinite(extent).all())
