"""Environments with observations and actions of every kind. Imported by workers as the module of `module:Id`."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv


class _Task(gymnasium.Env[Any, Any]):
    """Episodes that terminate after `length` steps; `_show` draws an observation, and `_pay` is an action's reward."""

    length = 10

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self._pay(action)
        self._steps += 1
        return self._show(), reward, self._steps == self.length, False, {}

    def _show(self) -> Any:
        raise NotImplementedError

    def _pay(self, action: Any) -> float:
        raise NotImplementedError


class Recall(_Task):
    """Symbols come and go; an action is right if it names the one that was shown `delay` steps ago."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)

    def __init__(self, delay: int = 2, length: int = 20) -> None:
        self._delay, self.length = delay, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._shown: deque[int] = deque(maxlen=self._delay + 1)
        return super().reset(seed=seed)

    def _pay(self, action: int) -> float:
        counts = len(self._shown) == self._delay + 1
        return float(counts and action == self._shown[0]) / (self.length - self._delay)

    def _show(self) -> int:
        self._shown.append(int(self.np_random.integers(3)))
        return self._shown[-1]


class Echo(gymnasium.Env[np.ndarray, np.ndarray]):
    """Signs come and go; the action is to be the sign that was shown in the step before. Episodes are truncated."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown, self._steps = 0.0, 0
        return self._show(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        counts, self._steps = self._steps > 0, self._steps + 1
        reward = -((float(action[0]) - self._before) ** 2) / 9.0 if counts else 0.0
        return self._show(), reward, False, self._steps == 10, {}

    def _show(self) -> np.ndarray:
        self._before, self._shown = self._shown, float(self.np_random.choice([-1.0, 1.0]))
        return np.array([self._shown], np.float32)


class SeeAndTell(_Task):
    """An image says which choice is right, a number which continuous action is: a Tuple of both is asked for."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 1), np.uint8), "vector": spaces.Box(-1.0, 1.0, (2,), np.float64)}
    )
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)))

    def _pay(self, action: Any) -> float:
        choice, continuous = action
        distance = min(1.0, abs(float(continuous[0]) - self._wanted))
        return (0.5 * float(choice == self._side) + 0.5 * (1.0 - distance)) / 10.0

    def _show(self) -> dict[str, Any]:
        self._side, self._wanted = int(self.np_random.integers(2)), float(self.np_random.uniform(-1.0, 1.0))
        image = np.zeros((8, 8, 1), dtype=np.uint8)
        image[:, 4 * self._side : 4 * self._side + 4] = 255
        return {"image": image, "vector": np.array([self._wanted, 0.0])}


class LitSide(_Task):
    """One half of an image is lit; a choice is right if it names the half."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def _pay(self, action: int) -> float:
        return float(action == self._side) / 10.0

    def _show(self) -> Any:
        self._side = int(self.np_random.integers(2))
        image = np.zeros((8, 8, 1), dtype=np.uint8)
        image[:, 4 * self._side : 4 * self._side + 4] = 255
        return image


class Masked(_Task):
    """Only some choices are allowed at each step; another one is an error."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(5), "number": spaces.Box(-1.0, 1.0, (1,))})
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 4])

    def _pay(self, action: Any) -> float:
        first, second = int(action[0]), int(action[1]) - 4
        if not (self._mask[first] and self._mask[2 + second]):
            raise ValueError(f"the action {action} is not allowed by {self._mask}")
        return float(second == 2) / 10.0

    def _show(self) -> dict[str, Any]:
        self._mask = np.ones(5, dtype=np.int8)
        self._mask[self.np_random.integers(2)] = 0
        self._mask[2 + self.np_random.integers(2)] = 0
        return {"action_mask": self._mask, "number": self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)}


class MaskedChoice(_Task):
    """One step: the largest choice is paid, of those that the mask allows; a forbidden one raises."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "number": spaces.Box(-1.0, 1.0, (1,))})
    action_space = spaces.Discrete(3)
    length = 1

    def _pay(self, action: int) -> float:
        if not self._mask[action]:
            raise ValueError(f"the action {action} is not allowed by {self._mask}")
        return float(action)

    def _show(self) -> dict[str, Any]:
        self._mask = np.array([1, 1, 0], dtype=np.int8)
        return {"action_mask": self._mask, "number": self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole's position and angle without their velocities, which a recurrent policy can tell from earlier ones."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


gymnasium.register("Recall-v0", Recall)
gymnasium.register("Echo-v0", Echo)
gymnasium.register("SeeAndTell-v0", SeeAndTell)
gymnasium.register("LitSide-v0", LitSide)
gymnasium.register("Masked-v0", Masked)
gymnasium.register("MaskedChoice-v0", MaskedChoice)
gymnasium.register("HiddenVelocity-v0", lambda **kwargs: Positions(CartPoleEnv(**kwargs)), max_episode_steps=500)


def endless() -> gymnasium.Env:
    """An environment without a time limit."""
    return gymnasium.make("CartPole-v1").unwrapped


def limited() -> gymnasium.Env:
    """One that has a wrapper for it."""
    return gymnasium.wrappers.TimeLimit(endless(), 30)
