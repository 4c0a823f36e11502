"""Vectorized environments of tensors; made as `tensor_envs:NAME`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from probe_envs import EndlessReward
from torch import Tensor

Step = tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]


class CartPole(VectorEnv[Any, Any, Any]):
    """Gymnasium's CartPole-v1 in torch, reset in the step that ends an episode. Observations are its own memory."""

    def __init__(self, num_envs: int, max_episode_steps: int, device: str = "cpu") -> None:
        self.num_envs, self._most_steps = num_envs, max_episode_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = Box(-np.inf, np.inf, (4,), np.float32), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generator = torch.Generator(device)
        self._state = torch.zeros((num_envs, 4), device=device)
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        if seed is not None:
            self._generator.manual_seed(seed)
        self._state.copy_(self._first_states())
        self._steps.zero_()
        return self._state, {}

    def step(self, actions: Tensor) -> Step:
        _, x_dot, theta, theta_dot = self._state.unbind(1)
        sin, cos = theta.sin(), theta.cos()
        pushed = (20.0 * actions - 10.0 + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = pushed - 0.05 * theta_acc * cos / 1.1
        change = torch.stack((x_dot, x_acc, theta_dot, theta_acc), dim=1)
        self._state.add_(change, alpha=0.02)
        self._steps += 1
        terminated = (self._state[:, 0].abs() > 2.4) | (self._state[:, 2].abs() > 12 * 2 * torch.pi / 360)
        truncated = self._steps >= self._most_steps
        ended, final_obs = terminated | truncated, self._state.clone()
        self._state.copy_(torch.where(ended[:, None], self._first_states(), self._state))
        self._steps.masked_fill_(ended, 0)
        reward = torch.ones_like(self._state[:, 0])
        return self._state, reward, terminated, truncated, {"final_obs": final_obs, "_final_obs": ended}

    def _first_states(self) -> Tensor:
        device = self._state.device
        return torch.rand(self._state.shape, generator=self._generator, device=device) * 0.1 - 0.05


class GivesNan(CartPole):
    """Its tenth reward is not a number."""

    _num_steps = 0

    def step(self, actions: Tensor) -> Step:
        obs, reward, *rest = super().step(actions)
        self._num_steps += 1
        return obs, reward * (torch.nan if self._num_steps == 10 else 1.0), *rest


class AsTensors(VectorWrapper):
    """Another environment's observations and actions as tensors, in the same memory at every step."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._memory: Tensor | None = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        if options is not None:
            options = {"reset_mask": options["reset_mask"].numpy()}
        return self._keep(self.env.reset(seed=seed, options=options)[0]), {}

    def step(self, actions: Tensor) -> Step:
        obs, reward, terminated, truncated, infos = self.env.step(actions.numpy())
        final = infos.pop("final_obs", None)
        infos = as_tensors(infos)
        if final is not None:
            nothing = np.zeros(obs.shape[1:], obs.dtype)
            final_obs = np.stack([nothing if each is None else each for each in final])
            infos["final_obs"] = torch.from_numpy(final_obs)
        tensors = (torch.from_numpy(np.array(array)) for array in (reward, terminated, truncated))
        return self._keep(obs), *tensors, infos

    def _keep(self, obs: np.ndarray) -> Tensor:
        if self._memory is None:
            self._memory = torch.zeros(obs.shape, dtype=torch.from_numpy(obs).dtype)
        return self._memory.copy_(torch.from_numpy(obs))


def as_tensors(infos: dict[str, Any]) -> dict[str, Any]:
    return {
        name: as_tensors(value) if isinstance(value, dict) else torch.from_numpy(np.array(value))
        for name, value in infos.items()
    }


def _endless_rewards(num_envs: int, autoreset_mode: str, **kwargs: Any) -> AsTensors:
    return AsTensors(SyncVectorEnv([lambda: EndlessReward(**kwargs)] * num_envs, autoreset_mode=autoreset_mode))


gymnasium.register("TensorCartPole-v0", vector_entry_point=CartPole, max_episode_steps=500)


class Modeless(CartPoleVectorEnv):
    """Does not say how it resets."""

    metadata: ClassVar[dict[str, Any]] = {}


gymnasium.register("Modeless-v0", vector_entry_point=Modeless)
gymnasium.register("GivesNan-v0", vector_entry_point=GivesNan, max_episode_steps=500)
gymnasium.register("TensorEndlessReward-v0", vector_entry_point=_endless_rewards)
gymnasium.register("ArrayCartPole-v0", vector_entry_point=CartPoleVectorEnv)
