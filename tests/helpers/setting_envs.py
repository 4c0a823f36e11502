"""Environments that change global settings of PyTorch or NumPy and need them; a network whose updates fail."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import asyncrl
from asyncrl.models.encoders import Inputs, ObservationEncoder

_inference_mode = torch.inference_mode()


class Demanding(gymnasium.Env[Any, Any]):
    """Episodes of five steps. Changes settings when it is made, and fails in a step where one has another value."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, what: str, scale: float = 1.0) -> None:
        self._obs = np.full(3, scale)
        self._what = what.split(",")
        if "float64" in self._what:
            torch.set_default_dtype(torch.float64)
        if "meta" in self._what:
            torch.set_default_device("meta")
        if "no_grad" in self._what:
            torch.set_grad_enabled(False)
        if "inference" in self._what and not torch.is_inference_mode_enabled():
            _inference_mode.__enter__()
        if "seterr" in self._what:
            np.seterr(all="raise")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        has_own = {
            "float64": torch.get_default_dtype() is torch.float64,
            "meta": torch.zeros(1).device.type == "meta",
            "no_grad": not torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "seterr": np.geterr()["under"] == "raise",
        }
        changed = [each for each in self._what if not has_own.get(each, True)]
        assert not changed, f"{changed} was changed"
        self._num_steps += 1
        return self._obs, float(action[0]), self._num_steps == 5, False, {}


_updates = itertools.count()


@asyncrl.register_encoder("fails_in_updates")
class FailsInUpdates(ObservationEncoder):
    """Raises in a later pass with gradients, when episodes have ended."""

    def forward(self, inputs: Inputs) -> Tensor:
        if torch.is_grad_enabled() and next(_updates) >= 50:
            raise ArithmeticError("the update is wrong")
        return super().forward(inputs)


class DiesEarly(Demanding):
    """Kills its process in its 21st step."""

    def __init__(self) -> None:
        super().__init__("")
        self._num_all_steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_all_steps += 1
        if self._num_all_steps > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
