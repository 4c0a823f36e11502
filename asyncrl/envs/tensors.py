"""Observations and actions of vectorized environments of tensors (`--env_backend=tensor`).

Other modules of `asyncrl.envs` use arrays in host memory and do not import torch; here all data stays on the device,
but for the three classes at the end, one side of which has arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor
from torch.nn.functional import pad

from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ActionMapping
from asyncrl.envs.actions import unit_of
from asyncrl.envs.observations import ObservationMismatch, leaf_of, nest
from asyncrl.envs.single import SingleEnv
from asyncrl.envs.spec import BoxAction, EnvSpec, LeafAction, ObservationPart, TreeAction


class TensorRows:
    """Converts batches of observations to rows (`asyncrl.envs.spec.ObservationLayout`)."""

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device) -> None:
        self._layout = spec.observation
        self._num_envs = num_envs
        self._device = device
        self._choices = {part: ChoicesToOneHot(part, device) for part in spec.observation.parts if part.num_choices}

    def rows_of(self, observations: Any) -> Tensor:
        """Rows `[E, row_size]` of observations, tensors `[E, ...]` nested like the space.

        Rows may share the environment's memory. A choice that is not in its space becomes NaN, so that no step waits
        for the device.

        Raises:
            ObservationMismatch: a part is missing, is not a tensor on the device, or has another shape than its space.
        """
        floats, pixels = [], []
        for part in self._layout.parts:
            values = self._checked(leaf_of(observations, part), part)
            if part.kind == "image":
                pixels.append(values.reshape(self._num_envs, -1).to(torch.uint8))
            elif part.kind == "choices":
                floats.append(self._choices[part](values))
            else:
                floats.append(values.reshape(self._num_envs, -1).to(torch.float32))
        numbers = floats[0] if len(floats) == 1 else torch.cat(floats, dim=1) if floats else None
        if not pixels:
            assert numbers is not None
            return numbers
        head = [] if numbers is None else [numbers.contiguous().view(torch.uint8)]
        row = torch.cat((*head, *pixels), dim=1) if head or len(pixels) > 1 else pixels[0]
        padding = self._layout.row_size - row.shape[1]
        return pad(row, (0, padding)) if padding else row

    def _checked(self, values: Any, part: ObservationPart) -> Tensor:
        name = f"{part.name}: " if part.path else ""
        if not isinstance(values, Tensor):
            raise ObservationMismatch(f"{name}a {type(values).__name__} where a tensor was expected")
        shape = (self._num_envs, *part.shape)
        if values.device.type != self._device.type or tuple(values.shape) != shape:
            raise ObservationMismatch(
                f"{name}shape {tuple(values.shape)} on {values.device}, not {shape} on {self._device}: "
                "an environment's device is given in env_kwargs, the learner's as --device"
            )
        return values


class ChoicesToOneHot:
    """Converts the choices of one part to one-hot numbers, those of its elements one after the other."""

    def __init__(self, part: ObservationPart, device: torch.device) -> None:
        choices = [start + np.arange(count) for count, start in zip(part.num_choices, part.starts, strict=True)]
        element = np.repeat(np.arange(len(choices)), part.num_choices)
        self._element, self._choice = (torch.from_numpy(each).to(device) for each in (element, np.concatenate(choices)))
        self._first, self._last = (torch.tensor([each[end] for each in choices], device=device) for end in (0, -1))

    def __call__(self, values: Tensor) -> Tensor:
        """From `[B, ...]` to `[B, size]` float32, NaN for a choice that is not in the space."""
        flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
        one_hot = (flat[:, self._element] == self._choice).to(torch.float32)
        is_known = (flat >= self._first) & (flat <= self._last)
        return one_hot.masked_fill(~is_known[:, self._element], torch.nan)


class TensorActions:
    """Converts actions as `asyncrl.envs.actions.ActionAdapter` does, for tensors."""

    def __init__(self, spec: EnvSpec, mapping: ActionMapping, device: torch.device) -> None:
        self._is_tree = isinstance(spec.action, TreeAction)
        self._paths = spec.action.paths
        self._sizes = [leaf.size for leaf in spec.action.leaves]
        self._leaves = [LeafToEnv(leaf, mapping, device) for leaf in spec.action.leaves]

    def to_env(self, actions: Tensor) -> Any:
        """Arguments of the environments' `step`, never in the memory of `actions`.

        Args:
            actions: [E, A] float32, or [E] integers for a single choice.

        Returns:
            [E, *shape] in the environment's dtype; for Dict and Tuple nested like the space.
        """
        if not self._is_tree:
            return self._leaves[0](actions)
        parts = torch.split(actions, self._sizes, dim=1)
        return nest({path: leaf(part) for path, leaf, part in zip(self._paths, self._leaves, parts, strict=True)})


class LeafToEnv:
    """Converts the stored actions of one leaf to the environment's."""

    def __init__(self, leaf: LeafAction, mapping: ActionMapping, device: torch.device) -> None:
        self._shape = leaf.shape
        self._dtype = getattr(torch, leaf.dtype)
        self._is_box = isinstance(leaf, BoxAction)
        if isinstance(leaf, BoxAction):
            self._squashes = mapping == "squashed"
            self._center, self._half_range = (torch.from_numpy(array).to(device) for array in unit_of(leaf, mapping))
            bounds = (leaf.low, leaf.high)
            self._low, self._high = (torch.tensor(bound, dtype=self._dtype, device=device) for bound in bounds)
        else:
            self._starts = torch.tensor(leaf.starts, dtype=torch.int64, device=device)

    def __call__(self, stored: Tensor) -> Tensor:
        """From `[B, size]`, or `[B]` for a single choice, to `[B, *shape]` in the environment's dtype."""
        if not self._is_box:
            return (stored.to(torch.int64) + self._starts).to(self._dtype).reshape(-1, *self._shape)
        numbers = stored.to(self._dtype)
        if self._squashes:
            numbers = torch.tanh(numbers)
        scaled = torch.addcmul(self._center, numbers, self._half_range)
        return scaled.clamp(self._low, self._high).reshape(-1, *self._shape)


class SingleTensorEnv(SingleEnv):
    """The only environment of a vectorized one of tensors, with arrays in host memory."""

    gives_tensors = True

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str) -> None:
        super().__init__(env, env_id)
        self._device = torch.device("cpu")

    def _observe(self, observations: Any) -> Any:
        def first(values: Any) -> Any:
            if not isinstance(values, Tensor):
                raise UsageError(f"--env_backend=tensor: {self.spec_id} gives {type(values).__name__}, not tensors.")
            self._device = values.device
            return values[0].cpu().numpy()

        return map_tree(first, observations)

    def _batch_of(self, action: Any) -> Any:
        return map_tree(lambda leaf: torch.from_numpy(np.array(leaf)[np.newaxis]).to(self._device), action)


class ArraysOfTensors(VectorWrapper):
    """A vectorized environment of tensors as one of arrays in host memory (`--env_backend=gym_vector`).

    So a separate process can step a simulator on one device while the learner trains on another. Each step copies
    actions to the simulator's device, and observations, rewards and ends from it; `infos` when an episode ends.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._device = torch.device("cpu")

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's."""
        obs, infos = self.env.reset(seed=seed, options=map_tree(self._as_tensor, options or {}) or None)
        map_tree(self._record_device, obs)
        return map_tree(_as_array, obs), map_tree(_as_array, infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environment's; `infos` are empty in steps in which no episode ends."""
        obs, *numbers, infos = self.env.step(map_tree(self._as_tensor, actions))
        # Copies: environments on the CPU may reset their memory before all of it was read.
        reward, terminated, truncated = (np.array(_as_array(each)) for each in numbers)
        has_ended = bool(terminated.any() or truncated.any())
        return map_tree(_as_array, obs), reward, terminated, truncated, map_tree(_as_array, infos if has_ended else {})

    def _record_device(self, values: Tensor) -> None:
        self._device = values.device

    def _as_tensor(self, values: Any) -> Any:
        return torch.from_numpy(np.array(values)).to(self._device) if isinstance(values, np.ndarray) else values


class TensorsOfArrays(VectorWrapper):
    """Copies observations and actions between the host's memory and a device. Autoreset modes stay."""

    def __init__(self, env: VectorEnv[Any, Any, Any], device: str = "cpu") -> None:
        """Takes a vectorized environment; `device` is that of its tensors."""
        super().__init__(env)
        self._device = torch.device(device)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's, with a mask as a tensor."""
        if options is not None:
            options = map_tree(_as_array, options)
        return self._as_tensors(self.env.reset(seed=seed, options=options)[0]), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As the environment's; final observations are given for all environments."""
        obs, reward, terminated, truncated, infos = self.env.step(map_tree(_as_array, actions))
        others = {name: value for name, value in infos.items() if name not in ("final_obs", "_final_obs")}
        tensors = self._as_tensors(_numbers_of(others) or {})
        if self.env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            tensors["final_obs"] = self._final_obs(obs, infos.get("final_obs"))
        ends = (self._as_tensors(np.asarray(each)) for each in (reward, terminated, truncated))
        return (self._as_tensors(obs), *ends, tensors)

    def _final_obs(self, obs: Any, final: Any) -> Any:
        """The final observation of environments that have one, any observation of others."""
        if final is None:
            return self._as_tensors(obs)
        if isinstance(final, (dict, tuple)):  # one batch
            return self._as_tensors(final)
        space = self.env.single_observation_space
        some = next(each for each in final if each is not None)
        filled = [some if each is None else each for each in final]
        room: Any = create_empty_array(space, len(filled))
        return self._as_tensors(concatenate(space, filled, room))

    def _as_tensors(self, nested: Any) -> Any:
        return map_tree(lambda array: torch.from_numpy(np.array(array)).to(self._device), nested)


def map_tree(function: Callable[[Any], Any], nested: Any) -> Any:
    """Nested mappings and tuples with a function's results as leaves."""
    if isinstance(nested, Mapping):
        return {key: map_tree(function, inner) for key, inner in nested.items()}
    return tuple(map_tree(function, inner) for inner in nested) if isinstance(nested, tuple) else function(nested)


def _as_array(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def _numbers_of(value: Any) -> Any:
    """The numbers in a value of `infos`, which may be nested; None without any.

    Gymnasium collects values that are not of Python's own types, such as NumPy's bools, in an array of objects, with
    None for environments without one; there they are 0, and a mask beside them says which these are.
    """
    if isinstance(value, dict):
        found = {name: each for name, every in value.items() if (each := _numbers_of(every)) is not None}
        for name in value.keys() - found.keys():
            found.pop(f"_{name}", None)  # its mask
        return found or None
    array = np.asarray(value)
    if array.dtype.kind == "O" and all(each is None or np.isscalar(each) for each in array.flat):
        array = np.asarray([0 if each is None else each for each in array.flat]).reshape(array.shape)
    return array if array.dtype.kind in "biuf" else None
