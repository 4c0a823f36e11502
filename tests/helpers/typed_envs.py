"""Environments of Gymnasium inside functions, wrappers and ids of a user's module."""

from __future__ import annotations

from typing import Any

import ale_py  # noqa: F401  # registers the games
import gymnasium
from gymnasium import spaces
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, MaxAndSkipObservation, TransformReward


def make() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def scaled() -> gymnasium.Env[Any, Any]:
    return TransformReward(gymnasium.make("MountainCarContinuous-v0"), lambda reward: 0.1 * float(reward))


def bare() -> gymnasium.Env[Any, Any]:
    return PendulumEnv()


def many(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec("Acrobot-v1", num_envs=num_envs, vectorization_mode="sync")


def stacked() -> gymnasium.Env[Any, Any]:
    return FlattenObservation(FrameStackObservation(make(), 2))


def game() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("ALE/Pong-v5")


def game_without_skip() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("PongNoFrameskip-v4")


def skipped() -> gymnasium.Env[Any, Any]:
    return MaxAndSkipObservation(game_without_skip(), 4)


class Large(gymnasium.Env[Any, Any]):
    """Images of a camera that are not made smaller."""

    action_space = spaces.Discrete(2)

    def __init__(self, height: int = 720, width: int = 1280) -> None:
        self.observation_space = spaces.Box(0, 255, (height, width, 3), "uint8")
        self._image = self.observation_space.sample()  # drawing one takes 0.15 s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._image.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._image.copy(), 0.0, True, False, {}


gymnasium.register("TypedCart-v0", entry_point=make)
gymnasium.register("TypedHopper-v3", entry_point=lambda **kwargs: gymnasium.make("Hopper-v5", **kwargs))
gymnasium.register("TypedPong-v0", entry_point=game)
gymnasium.register("Turned-v3", entry_point=make)
