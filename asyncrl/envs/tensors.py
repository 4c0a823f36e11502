"""Observations and actions of vectorized environments of tensors (`--env_backend=tensor`).

Other modules of `asyncrl.envs` use arrays in host memory and do not import torch; here all data stays on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import ActionMapping
from asyncrl.envs.actions import unit_of
from asyncrl.envs.observations import ObservationMismatch
from asyncrl.envs.single import SingleEnv
from asyncrl.envs.spec import BoxAction, EnvSpec, TreeAction


def check_spaces(spec: EnvSpec) -> None:
    """Checks that this backend supports the spaces.

    Raises:
        UsageError: they are nested, or observations are not numbers.
    """
    (part, *others) = spec.observation.parts
    if others or part.path or part.kind not in ("numbers", "image"):
        raise UsageError(f"--env_backend=tensor takes observations that are one Box, unlike {spec.env_id}.")
    if isinstance(spec.action, TreeAction):
        raise UsageError(f"--env_backend=tensor takes no Dict or Tuple of actions, unlike {spec.env_id}.")


class TensorRows:
    """Converts batches of observations to rows (`asyncrl.envs.spec.ObservationLayout`), for supported spaces."""

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device) -> None:
        layout = spec.observation
        self._shape = (num_envs, *layout.parts[0].shape)
        self._dtype = torch.uint8 if layout.num_pixels else torch.float32
        self._padding = layout.row_size - layout.parts[0].size
        self._device = device

    def rows_of(self, observations: Any) -> Tensor:
        """Rows `[E, row_size]` of observations `[E, ...]`; they may share the environment's memory.

        Raises:
            ObservationMismatch: they are not a tensor on the device, or their shape differs from the space.
        """
        if not isinstance(observations, Tensor):
            raise ObservationMismatch(f"a {type(observations).__name__} where a tensor was expected")
        if observations.device.type != self._device.type or tuple(observations.shape) != self._shape:
            raise ObservationMismatch(
                f"shape {tuple(observations.shape)} on {observations.device}, not {self._shape} on {self._device}: "
                "an environment's device is given in env_kwargs, the learner's as --device"
            )
        rows = observations.reshape(self._shape[0], -1).to(self._dtype)
        return pad(rows, (0, self._padding)) if self._padding else rows


class TensorActions:
    """Converts actions as `asyncrl.envs.actions.ActionAdapter` does, for tensors and supported spaces."""

    def __init__(self, spec: EnvSpec, mapping: ActionMapping, device: torch.device) -> None:
        action = spec.action
        assert not isinstance(action, TreeAction)
        self._squashes = mapping == "squashed"
        self._shape = action.shape
        self._starts: Tensor | None = None
        if isinstance(action, BoxAction):
            dtype = getattr(torch, action.dtype)
            self._center, self._half_range = (torch.from_numpy(array).to(device) for array in unit_of(action, mapping))
            self._low = torch.tensor(action.low, dtype=dtype, device=device)
            self._high = torch.tensor(action.high, dtype=dtype, device=device)
        else:
            self._starts = torch.tensor(action.starts, device=device)

    def to_env(self, actions: Tensor) -> Tensor:
        """Arguments of the environments' `step`, never in the memory of `actions`.

        Args:
            actions: [E, A] float32, or [E] integers for a single choice.
        """
        if self._starts is not None:
            return (actions.long() + self._starts).reshape(len(actions), *self._shape)
        numbers = actions.to(self._low.dtype)
        if self._squashes:
            numbers = torch.tanh(numbers)
        scaled = torch.addcmul(self._center, numbers, self._half_range)
        return torch.clamp(scaled, self._low, self._high).reshape(len(actions), *self._shape)


class SingleTensorEnv(SingleEnv):
    """The only environment of a vectorized one of tensors, with arrays in host memory."""

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        super().__init__(env, env_id)
        self._device = torch.device("cpu")

    def _observe(self, observations: Any) -> Any:
        if not isinstance(observations, Tensor):
            raise UsageError(f"--env_backend=tensor: {self.spec_id} gives {type(observations).__name__}, not tensors.")
        self._device = observations.device
        return observations[0].cpu().numpy()

    def _batch_of(self, action: Any) -> Any:
        return torch.from_numpy(np.array(action)[np.newaxis]).to(self._device)
