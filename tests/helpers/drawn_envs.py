"""Environments that draw tiny pictures, made as `drawn_envs:name`, and what is in a video of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
from agent_envs import TakeTurns
from gymnasium.spaces import Box, Discrete


class Counter(gymnasium.Env[Any, Any]):
    """Draws its step as a grey, 20 brighter each step; pays `pays` a step, plus a part that the seed decides."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space, action_space = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)

    def __init__(
        self,
        render_mode: str | None = None,
        length: int = 8,
        height: int = 32,
        width: int = 32,
        pays: float = 1.0,
        size: int = 1,
        draws: str = "pixels",
        stat: str = "luck",
    ) -> None:
        self.render_mode, self._draws, self._length, self._shape = render_mode, draws, length, (height, width, 3)
        self._pays, self._stat, self._num_steps = pays, stat, 0
        self.observation_space = Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._num_steps, self._luck = 0, float(self.np_random.integers(100))
        return self.observation_space.low, {}

    def step(self, action: int) -> Any:
        self._num_steps += 1
        is_over = self._num_steps >= self._length
        info = {"is_success": self._luck > 50, "episode_extra_stats": {self._stat: self._luck}} if is_over else {}
        reward = self._pays * float(action) + (self._luck if is_over else 0.0)
        return self.observation_space.low, reward, is_over, False, info

    def close(self) -> None:
        if self._draws == "no end":
            raise ZeroDivisionError("the window is gone")

    def render(self) -> Any:
        if self._draws == "mistake" and self._num_steps > 2:
            raise ZeroDivisionError("the camera")
        if self._draws == "crash" and self._num_steps > 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._draws == "growing" and self._num_steps > 2:
            return np.zeros((64, 64, 3), np.uint8)
        return np.full(self._shape, min(10 + 20 * self._num_steps, 250), np.uint8)


class Game(TakeTurns):
    """A game of two players that is drawn."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), 10 + 20 * self.num_moves, np.uint8)


counter, game = Counter, Game


def greys(path: Path) -> list[int]:
    """The mean grey of each frame of a video."""
    frames = imageio_ffmpeg.read_frames(str(path))
    next(frames)  # about the video
    return [round(float(np.frombuffer(frame, np.uint8).mean())) for frame in frames]


def size_of(path: Path) -> tuple[int, int, float]:
    """Width, height and frames per second of a video."""
    about: Any = next(imageio_ffmpeg.read_frames(str(path)))
    return (*about["source_size"], about["fps"])
