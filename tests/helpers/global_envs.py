"""Environments that draw from global generators and from their spaces, and note what they drew.

Made as `global_envs:NAME`. Each environment writes its own file in `folder`, a line of draws at each reset.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple
from gymnasium.vector import SyncVectorEnv, VectorEnv

import asyncrl
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import ObservationLayout
from asyncrl.envs.tensors import TensorsOfArrays
from asyncrl.models.encoders import Inputs

BIT = Box(-1.0, 1.0, (1,), np.float32)
_numbers = itertools.count()


def number_of(space: Space[Any]) -> float:
    """The only number of a sample."""
    return float(np.asarray(space.sample()).reshape(-1)[0])


def read(folder: Path) -> list[list[dict[str, Any]]]:
    """What each environment drew at each of its resets; environments of a process in the order in which it made them.

    Those of the check before a run have the role `check`, and those of a serial run `serial`.
    """
    paths = sorted(folder.iterdir(), key=lambda path: tuple(map(int, path.stem.split("-"))))
    environments = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    for each in itertools.chain(*environments):
        if each["role"] == "MainProcess":
            each["role"] = "serial" if each["process"] == os.getpid() else "check"
    return sorted(environments, key=lambda resets: str(resets[0]["role"]))


def values(environments: list[list[dict[str, Any]]]) -> list[float]:
    """All numbers that were drawn when environments were made and in resets."""
    at_start = [value for resets in environments for value in resets[0]["at_start"]]
    return at_start + [value for resets in environments for each in resets for value in each["drawn"].values()]


class Drawing(gymnasium.Env[Any, Any]):
    """Ten steps without reward. All environments of a process share its spaces, which are those of the class."""

    observation_space = Dict({"own": BIT, "pair": Tuple((Box(-1.0, 1.0, (1,)), Box(0.0, 1.0, (1,))))})
    action_space = Box(-1.0, 1.0, (1,))
    render_mode = "rgb_array"

    def __init__(self, folder: str, dies_once: bool = False, reward: bool = False, render_mode: str = "") -> None:
        self.folder, self.dies_once, self.has_reward = Path(folder), dies_once, reward
        self.path = self.folder / f"{os.getpid()}-{next(_numbers)}.jsonl"
        self.starts = Box(-1.0, 1.0, (1,))  # a space that only this code knows
        self.at_start = random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64))
        self.num_steps = 0

    def draw(self) -> dict[str, float]:
        own: Any = self.observation_space
        return {
            "random": random.random(),
            "numpy": float(np.random.random()),
            "torch": float(torch.rand((), dtype=torch.float64)),
            "action_space": number_of(self.action_space),
            "observation_space": float(own.sample()["own"][0]),
            "part": number_of(own["pair"][1]),
            "starts": number_of(self.starts),
        }

    def note(self, seed: Any = None) -> None:
        where = {"role": multiprocessing.current_process().name, "process": os.getpid(), "seed": seed}
        line = {**where, "at_start": self.at_start, "drawn": self.draw()}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.note(seed)
        if self.dies_once and multiprocessing.parent_process() is not None:  # not in the check before the run
            with contextlib.suppress(FileExistsError):
                (self.folder.parent / "died").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.draw()
        self.num_steps += 1
        reward = float(np.random.random()) if self.has_reward else 0.0
        return self._observation(), reward, self.num_steps == 10, False, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), int(255 * np.random.random()), np.uint8)

    def _observation(self) -> Any:
        zero = np.zeros(1, np.float32)
        return {"own": zero, "pair": (zero, zero)}


class Agents:
    """Two agents at once, PettingZoo's parallel interface. Each agent's spaces are kept, as PettingZoo asks for."""

    metadata: dict[str, Any] = {}
    possible_agents = ("first", "second")

    def __init__(self, folder: str) -> None:
        self._first_network = Drawing(folder)
        self._observing = {agent: Box(-1.0, 1.0, (1,)) for agent in self.possible_agents}
        self._acting = {agent: Box(-1.0, 1.0, (1,)) for agent in self.possible_agents}
        self._first_network.action_space = self._acting["second"]
        self._first_network.observation_space = Dict({"own": self._observing["second"], "pair": Tuple((BIT, BIT))})

    def observation_space(self, agent: str) -> Space[Any]:
        return self._observing[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self._acting[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        self._first_network.reset(seed=seed)
        return self._of_all(np.zeros(1, np.float32)), self._of_all({})

    def step(self, actions: Any) -> tuple[Any, ...]:
        over = self._first_network.step(None)[2]
        obs, rewards, ends, no_ends, infos = map(self._of_all, (np.zeros(1, np.float32), 0.0, over, False, {}))
        if over:
            self.agents = []
        return obs, rewards, ends, no_ends, infos

    def close(self) -> None:
        pass

    def _of_all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)


class Flat(Drawing):
    """The same with one number as the observation, and spaces of its own."""

    def __init__(self, folder: str) -> None:
        self.observation_space, self.action_space = Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,))
        super().__init__(folder)

    def draw(self) -> dict[str, float]:
        own = {"action_space": number_of(self.action_space), "observation_space": number_of(self.observation_space)}
        return {**own, "numpy": float(np.random.random()), "torch": float(torch.rand((), dtype=torch.float64))}

    def _observation(self) -> Any:
        return np.zeros(1, np.float32)


def vectorized(num_envs: int, folder: str) -> SyncVectorEnv:
    """A vectorized environment of several."""
    return SyncVectorEnv([lambda: Flat(folder)] * num_envs)


def tensors(num_envs: int, folder: str) -> VectorEnv[Any, Any, Any]:
    """The same, of tensors."""
    return TensorsOfArrays(vectorized(num_envs, folder))


class Quiet(gymnasium.Env[Any, Any]):
    """Ten steps, rewards for actions near the observation; `noisy`: it also seeds and draws from all global ones."""

    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(2)

    def __init__(self, noisy: bool = False) -> None:
        self.noisy = noisy

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        if self.noisy:
            random.seed(0), np.random.seed(0), torch.manual_seed(0)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        if self.noisy:
            random.random(), np.random.random(7), torch.rand(3), self.action_space.sample()
        return self._observation(), float(action), self.num_steps == 10, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)


@asyncrl.register_encoder("numpy_encoder")
class NumpyEncoder(torch.nn.Module):
    """A layer whose weights are drawn by NumPy and by Python."""

    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__()
        self.output_size = 4
        weights = np.random.standard_normal((layout.num_features, 4)) + random.random()
        self.weights = torch.nn.Parameter(torch.from_numpy(weights.astype(np.float32)))

    def forward(self, inputs: Inputs) -> torch.Tensor:
        return torch.tanh(inputs.floats @ self.weights)
