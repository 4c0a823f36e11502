"""Environments with goals and sparse rewards; made as `contrib.hindsight.goal_envs:NAME`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary


class _GoalEnv(gymnasium.Env):
    """The reward is 0 where the goal is achieved, which ends the episode, and -1 elsewhere."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> float:
        return float(self._distance(achieved_goal, desired_goal) == 0) - 1.0

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> bool:
        return bool(self._distance(achieved_goal, desired_goal) == 0)

    def _distance(self, achieved_goal: np.ndarray, desired_goal: np.ndarray) -> float:
        return np.abs(np.subtract(achieved_goal, desired_goal, dtype=np.float64)).sum()

    def _result(self, state: np.ndarray, goal: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info = {"is_success": self.compute_terminated(state, goal, {})}
        return self._observe(state, goal), self.compute_reward(state, goal, info), info["is_success"], False, info

    def _observe(self, state: np.ndarray, goal: np.ndarray) -> dict[str, np.ndarray]:
        return {"observation": state, "achieved_goal": state, "desired_goal": goal}


class BitFlip(_GoalEnv):
    """Each action flips one bit; the goal is another word (Andrychowicz et al. 2017, section 3.1)."""

    def __init__(self, size: int = 8) -> None:
        self.observation_space = Dict({name: MultiBinary(size) for name in self._observe(None, None)})
        self.action_space = Discrete(size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(2, size=(2, self.action_space.n), dtype=np.int8)
        return self._observe(self._bits, self._goal), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._bits[action] ^= 1  # in place: nobody may keep what was returned before
        return self._result(self._bits, self._goal)


class PointReach(_GoalEnv):
    """A point in the plane that moves by at most 0.1 in each direction; the goal is a small square."""

    def __init__(self) -> None:
        self.observation_space = Dict({name: Box(-1.0, 1.0, (2,), np.float64) for name in self._observe(None, None)})
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal = self.np_random.uniform(-1.0, 1.0, 2)
        self._position = np.zeros(2)
        return self._observe(self._position, self._goal), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._position = np.clip(self._position + 0.1 * action, -1.0, 1.0)
        return self._result(self._position, self._goal)

    def _distance(self, achieved_goal: np.ndarray, desired_goal: np.ndarray) -> float:
        return max(0.0, np.abs(achieved_goal - desired_goal).max() - 0.05)


class ScriptedGoals(gymnasium.Env):
    """Achieves a list of numbers, one a step, until None ends the episode; the reward names all its arguments."""

    def __init__(self, achieved: Sequence[float | Exception | None], terminates: bool, size: int = 1) -> None:
        self.observation_space = Dict(
            {
                "achieved_goal": Box(-99.0, 99.0, (size,), np.float64),
                "desired_goal": Box(-99.0, 99.0, (size,), np.float64),
                "picture": Box(0, 255, (8, 8), np.uint8),
            }
        )
        self.action_space = Discrete(2)
        self._achieved, self._terminates = list(achieved), terminates
        self._state = np.zeros(size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._state[:] = -50.0
        self._step = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        number = self._achieved.pop(0)
        if isinstance(number, Exception):
            raise number
        assert number is not None
        self._state[:], self._step = number, self._step + 1
        is_over = self._achieved[0] is None
        if is_over:
            self._achieved.pop(0)
        return (
            self._observe(),
            0.5,
            is_over and self._terminates,
            is_over and not self._terminates,
            {"step": self._step},
        )

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return 10_000.0 * info["step"] + 100.0 * achieved_goal[:1] + desired_goal[:1]

    def _observe(self) -> dict[str, np.ndarray]:
        picture = np.full((8, 8), self._step, np.uint8)
        return {"achieved_goal": self._state, "desired_goal": np.full_like(self._state, 7.0), "picture": picture}


class ReusedInfo(_GoalEnv):
    """The reward is the number of the step, which is only in an array of `info` that each step changes."""

    def __init__(self, place: str = "array") -> None:
        self.observation_space = Dict({name: Box(-1.0, 1.0, (2,)) for name in self._observe(None, None)})
        self.action_space = Discrete(2)
        self._number = np.zeros(1)
        self._info: dict[str, Any] = {
            "array": {"number": self._number},
            "dict": {"number": {"of": {"step": self._number}}},
            "list": {"number": [self._number]},
            "object": {"number": SimpleNamespace(step=self._number)},
            "lock": {"number": self._number, "lock": threading.Lock()},
        }[place]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._number[:] = 0.0
        return self._observe(*np.zeros((2, 2), np.float32)), self._info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._number += 1.0
        goals = np.zeros((2, 2), np.float32)
        return self._observe(*goals), float(self._number[0]), False, self._number[0] == 5, self._info

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> float:
        found = info["number"]
        while not isinstance(found, np.ndarray):
            found = (
                found[0] if isinstance(found, list) else next(iter(dict(getattr(found, "__dict__", found)).values()))
            )
        return float(found[0])


class PaidReach(PointReach):
    """The reward is 1 where the goal is reached and 0 elsewhere, so few steps have another one."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> float:
        return 1.0 + super().compute_reward(achieved_goal, desired_goal, info)


class OtherUnit(gymnasium.ObservationWrapper):
    """Positions and goals in another unit; `compute_reward` is that of the environment, in its own unit."""

    def __init__(self, env: gymnasium.Env, factor: float = 100.0) -> None:
        super().__init__(env)
        self.factor = factor
        self.observation_space = Dict({name: Box(-1e6, 1e6, (2,)) for name in env.observation_space})

    def observation(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: (self.factor * value).astype(np.float32) for name, value in observation.items()}


class ConvertedUnit(OtherUnit):
    """The same with a `compute_reward` that takes goals in the other unit."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: dict[str, Any]) -> float:
        of_env = self.env.get_wrapper_attr("compute_reward")
        return of_env(achieved_goal / self.factor, desired_goal / self.factor, info)


def wrapped(how: str) -> gymnasium.Env:
    """A point that has to reach a goal, with a wrapper."""
    wrappers = gymnasium.wrappers
    if how == "scaled":
        return wrappers.TransformReward(wrappers.TimeLimit(PointReach(), 15), lambda reward: 0.01 * reward)
    if how == "rarely scaled":
        return wrappers.TransformReward(PaidReach(), lambda reward: 10.0 * reward)
    if how == "clipped":
        return wrappers.ClipReward(PointReach(), -0.5, 0.5)
    if how == "normalized":
        return wrappers.NormalizeReward(PointReach())
    if how == "other unit":
        return OtherUnit(PointReach())
    if how == "smaller unit":
        return OtherUnit(PointReach(), 0.01)
    if how == "converted unit":
        return ConvertedUnit(PointReach())
    if how == "not clipped":
        return wrappers.ClipReward(PointReach(), -1.0, 1.0)
    assert how == "float32"
    return OtherUnit(PointReach(), 1.0)


for _environment, _limit in ((BitFlip, 8), (PointReach, 15)):
    gymnasium.register(f"{_environment.__name__}-v0", entry_point=_environment, max_episode_steps=_limit)
