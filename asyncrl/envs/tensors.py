"""What vectorized environments whose observations and actions are tensors give and take (`--env_backend=tensor`).

The rest of `asyncrl.envs` is for arrays in the host's memory and knows no torch; here nothing leaves the device.
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
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec, TreeAction


def check_spaces(spec: EnvSpec) -> None:
    """Looks whether tensors of these spaces are known.

    Raises:
        UsageError: they are nested, or no numbers.
    """
    (part, *others) = spec.observation.parts
    if others or part.path or part.kind not in ("numbers", "image"):
        raise UsageError(f"--env_backend=tensor takes observations that are one Box, unlike {spec.env_id}.")
    if isinstance(spec.action, TreeAction):
        raise UsageError(f"--env_backend=tensor takes no Dict or Tuple of actions, unlike {spec.env_id}.")


class TensorRows:
    """Turns batches of observations into rows (`asyncrl.envs.spec.ObservationLayout`)."""

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device) -> None:
        """Takes spaces that `check_spaces` knows."""
        layout = spec.observation
        self._shape = (num_envs, *layout.parts[0].shape)
        self._dtype = torch.uint8 if layout.num_pixels else torch.float32
        self._padding = layout.row_size - layout.parts[0].size
        self._device = device

    def rows_of(self, observations: Any) -> Tensor:
        """Rows `[E, row_size]` of observations `[E, ...]`, perhaps in the environment's own memory.

        Raises:
            ObservationMismatch: they are no tensor on the device, or have another shape than their space says.
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
    """Turns the policy's actions into the environment's: `asyncrl.envs.actions.ActionAdapter` for tensors."""

    def __init__(self, spec: EnvSpec, mapping: ActionMapping, device: torch.device) -> None:
        """Takes spaces that `check_spaces` knows."""
        action = spec.action
        assert not isinstance(action, TreeAction)
        self._squashes = mapping == "squashed"
        self._shape = () if isinstance(action, DiscreteAction) else action.shape
        self._starts: Tensor | None = None
        if isinstance(action, BoxAction):
            dtype = getattr(torch, action.dtype)
            self._center, self._half_range = (torch.from_numpy(array).to(device) for array in unit_of(action, mapping))
            self._low = torch.tensor(action.low, dtype=dtype, device=device)
            self._high = torch.tensor(action.high, dtype=dtype, device=device)
        else:
            starts = action.start if isinstance(action, DiscreteAction) else action.starts
            self._starts = torch.tensor(starts, device=device)

    def to_env(self, actions: Tensor) -> Tensor:
        """Actions of E environments as they take them, never in the memory of `actions`.

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
    """The only environment in a vectorized one of tensors, with arrays in the host's memory."""

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        """Takes ownership of `env`, which holds one environment."""
        super().__init__(env, env_id)
        self._device = torch.device("cpu")

    def _observe(self, observations: Any) -> Any:
        if not isinstance(observations, Tensor):
            raise UsageError(f"--env_backend=tensor: {self.spec_id} gives {type(observations).__name__}, not tensors.")
        self._device = observations.device
        return observations[0].cpu().numpy()

    def _batch_of(self, action: Any) -> Any:
        return torch.from_numpy(np.array(action)[np.newaxis]).to(self._device)
