"""Environments that say which actions are allowed, in places that are read and in others; made as `mask_envs:NAME`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from agent_envs import OwnBits
from gymnasium import spaces

MASK = np.array([1, 0, 1], np.int8)


class Unmasked(gymnasium.Env):
    """Three choices; nothing depends on them."""

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,))
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        return self._observe(), 1.0, False, self._num_steps == 5, self._info()

    def _observe(self) -> Any:
        return np.zeros(2, np.float32)

    def _info(self) -> dict[str, Any]:
        # Not masks of these actions: another size, another name, other numbers.
        return {"mask": np.ones(7), "numbers": [1, 0, 1], "action_mask_of_goal": [0.5, 1.0, 0.0]}


class ByMethod(Unmasked):
    """As sb3-contrib asks."""

    def action_masks(self) -> np.ndarray:
        return MASK.astype(bool)


class Raising(ByMethod):
    """An action that is not allowed is an error."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not MASK[action]:
            raise ValueError("this action is not allowed")
        return super().step(action)


class ByInfo(Unmasked):
    """As Gymnasium's Taxi; with `after_steps` only the infos of `step` have the mask."""

    def __init__(self, key: str = "action_mask", as_list: bool = False, after_steps: int = 0) -> None:
        self._key, self._value, self._after_steps = key, [0, 2] if as_list else MASK, after_steps

    def _info(self) -> dict[str, Any]:
        return {self._key: self._value} if self._num_steps >= self._after_steps else {}


class ByObservation(Unmasked):
    """Under any key of the observation, as Tianshou asks with `mask`."""

    def __init__(self, key: str = "mask") -> None:
        self._key = key
        self.observation_space = spaces.Dict({key: spaces.Box(0, 1, (3,), np.int8), "obs": spaces.Box(-1.0, 1.0, (2,))})

    def _observe(self) -> dict[str, np.ndarray]:
        return {self._key: MASK, "obs": np.zeros(2, np.float32)}


class Everywhere(ByObservation, ByMethod):
    """The mask is in the observation, which is read, and in other places, too."""

    def __init__(self) -> None:
        super().__init__("action_mask")

    def _info(self) -> dict[str, Any]:
        return {"action_mask": MASK}


class Orders(Unmasked):
    """An action of three parts, which the code lists in another order than Gymnasium."""

    def __init__(self, size: int | None = 9) -> None:
        parts = {"where": spaces.MultiDiscrete([2, 3]), "speed": spaces.Box(-1.0, 1.0, (2,)), "how": spaces.Discrete(4)}
        self.action_space = spaces.Dict(parts)
        self._size = size
        if size is not None:
            parts = {"action_mask": spaces.MultiBinary(size), "obs": spaces.Box(-1.0, 1.0, (2,))}
            self.observation_space = spaces.Dict(parts)

    def _observe(self) -> Any:
        obs = np.zeros(2, np.float32)
        return obs if self._size is None else {"action_mask": np.ones(self._size, np.int8), "obs": obs}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": {"where": (np.ones(2), np.ones(3)), "how": np.ones(4)}}


def wrapped() -> gymnasium.Env:
    """The method is that of an environment behind wrappers."""
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.ClipReward(ByMethod(), -1.0, 1.0), 3)


class Game(OwnBits):
    """Two agents with a mask in the infos of steps, as in PettingZoo's newer games."""

    def __init__(self) -> None:
        super().__init__(2)

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        *results, infos = super().step(actions)
        return *results, {agent: {"action_mask": np.array([1, 0], np.int8)} for agent in infos}
