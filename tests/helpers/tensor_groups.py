"""The same small environments as arrays and as tensors, and a group that steps them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from probe_envs import Sentinel

from asyncrl.envs.spaces import read_spec
from asyncrl.modes.tensors.env_group import TensorEnvGroup

NUM_ENVS = 4
CPU = torch.device("cpu")


class NumberedSentinel(Sentinel):
    """A `Sentinel` that knows its number without a seed."""

    def __init__(self, number: int) -> None:
        super().__init__(run_seed=0)
        self._number = number

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return super().reset()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            odd = {"odd": 0.5} if self._number % 2 else {}
            info = {"episode_extra_stats": {"number": self._number, **odd}, "is_success": self._number == 2}
        return obs, reward, terminated, truncated, info


def sentinels(mode: AutoresetMode, num_envs: int = NUM_ENVS) -> SyncVectorEnv:
    makers = [lambda number=number: NumberedSentinel(number) for number in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def tensor_group(env: VectorEnv[Any, Any, Any]) -> TensorEnvGroup:
    return TensorEnvGroup(env, 7, read_spec(NumberedSentinel(0), "Sentinels"), "raw", CPU)
