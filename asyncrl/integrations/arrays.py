"""Vectorized environments of arrays (`gymnasium.vector`), as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from asyncrl.integrations.simulated import map_tree


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


def _as_array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


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
