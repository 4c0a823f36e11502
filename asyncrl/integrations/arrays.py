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
        numbers = {name: value for name, value in infos.items() if name not in ("final_obs", "_final_obs")}
        tensors = self._as_tensors({name: value for name, value in numbers.items() if _is_numeric(value)})
        if self.env.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            tensors["final_obs"] = self._final_obs(obs, infos.get("final_obs"))
        ends = (self._as_tensors(np.asarray(each)) for each in (reward, terminated, truncated))
        return (self._as_tensors(obs), *ends, tensors)

    def _final_obs(self, obs: Any, final: Any) -> Any:
        """The final observation of environments that have one, any observation of others."""
        if final is None:
            return self._as_tensors(obs)
        space = self.env.single_observation_space
        some = next(each for each in final if each is not None)
        filled = [some if each is None else each for each in final]
        room: Any = create_empty_array(space, len(filled))
        return self._as_tensors(concatenate(space, filled, room))

    def _as_tensors(self, nested: Any) -> Any:
        return map_tree(lambda array: torch.from_numpy(np.array(array)).to(self._device), nested)


def _as_array(value: Any) -> Any:
    return value.cpu().numpy() if isinstance(value, Tensor) else value


def _is_numeric(value: Any) -> bool:
    """Whether a value of `infos`, perhaps nested, has numbers only."""
    if isinstance(value, dict):
        return all(map(_is_numeric, value.values()))
    return np.asarray(value).dtype.kind in "biuf"
