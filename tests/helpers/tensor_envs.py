"""Vectorized environments of tensors; made as `tensor_envs:NAME`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from probe_envs import EndlessReward, HiddenOffset, Reach
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


def make_cart_pole(num_envs: int, max_episode_steps: int = 500) -> CartPole:
    return CartPole(num_envs, max_episode_steps)


class ShapedCartPole(CartPole):
    """Pays a bonus for each step, which an observer may change."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, max_episode_steps=10)
        self._bonus = torch.ones(num_envs)

    def get_default_reward_shaping(self) -> dict[str, float]:
        return {"bonus": 1.0}

    def set_reward_shaping(self, shaping: dict[str, float], agent: int) -> None:
        self._bonus[agent] = shaping["bonus"]

    def step(self, actions: Tensor) -> Step:
        obs, _, *rest = super().step(actions)
        return obs, self._bonus.clone(), *rest


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
        self._memory: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        if options is not None:
            options = {"reset_mask": options["reset_mask"].numpy()}
        return self._keep(self.env.reset(seed=seed, options=options)[0]), {}

    def step(self, actions: Tensor) -> Step:
        obs, reward, terminated, truncated, infos = self.env.step(as_arrays(actions))
        final = infos.pop("final_obs", None)
        infos = as_tensors(infos)
        if final is not None:
            nothing = self.env.single_observation_space.sample()
            space = self.env.single_observation_space
            filled = [nothing if each is None else each for each in final]
            infos["final_obs"] = as_tensors(concatenate(space, filled, create_empty_array(space, len(filled))))
        tensors = (torch.from_numpy(np.array(array)) for array in (reward, terminated, truncated))
        return self._keep(obs), *tensors, infos

    def _keep(self, obs: Any) -> Any:
        if self._memory is None:
            self._memory = as_tensors(obs)
        return _copy_into(self._memory, obs)


def _copy_into(memory: Any, obs: Any) -> Any:
    if isinstance(memory, dict):
        return {key: _copy_into(inner, obs[key]) for key, inner in memory.items()}
    if isinstance(memory, tuple):
        return tuple(_copy_into(inner, each) for inner, each in zip(memory, obs, strict=True))
    return memory.copy_(torch.from_numpy(obs))


def as_tensors(nested: Any) -> Any:
    if isinstance(nested, dict):
        return {name: as_tensors(value) for name, value in nested.items()}
    return tuple(map(as_tensors, nested)) if isinstance(nested, tuple) else torch.from_numpy(np.array(nested))


def as_arrays(nested: Any) -> Any:
    if isinstance(nested, dict):
        return {name: as_arrays(value) for name, value in nested.items()}
    return tuple(map(as_arrays, nested)) if isinstance(nested, tuple) else nested.numpy()


def _endless_rewards(num_envs: int, autoreset_mode: str, **kwargs: Any) -> AsTensors:
    return AsTensors(SyncVectorEnv([lambda: EndlessReward(**kwargs)] * num_envs, autoreset_mode=autoreset_mode))


gymnasium.register("TensorCartPole-v0", vector_entry_point=CartPole, max_episode_steps=500)


class Modeless(CartPoleVectorEnv):
    """Does not say how it resets."""

    metadata: ClassVar[dict[str, Any]] = {}


gymnasium.register("Modeless-v0", vector_entry_point=Modeless)


class Masked(gymnasium.Env[Any, Any]):
    """Only one of two choices is allowed."""

    observation_space = Dict({"phase": Discrete(2), "action_mask": MultiBinary(2)})
    action_space = Discrete(2)
    phase = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.phase = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == self.phase, "the mask forbids it"
        self.phase = 1 - self.phase
        return self._obs(), 1.0, self.np_random.random() < 0.2, False, {}

    def _obs(self) -> dict[str, Any]:
        return {"phase": np.int64(self.phase), "action_mask": np.eye(2, dtype=np.int8)[self.phase]}


def make_masked(num_envs: int, autoreset_mode: str) -> AsTensors:
    return AsTensors(SyncVectorEnv([Masked] * num_envs, autoreset_mode=autoreset_mode))


def make_reach(num_envs: int, autoreset_mode: str) -> AsTensors:
    return AsTensors(SyncVectorEnv([lambda: Reach(-1.0, 3.0)] * num_envs, autoreset_mode=autoreset_mode))


def make_hidden_offset(num_envs: int, **kwargs: Any) -> AsTensors:
    return AsTensors(SyncVectorEnv([lambda: HiddenOffset(**kwargs)] * num_envs))


gymnasium.register("GivesNan-v0", vector_entry_point=GivesNan, max_episode_steps=500)
gymnasium.register("TensorEndlessReward-v0", vector_entry_point=_endless_rewards)
gymnasium.register("ArrayCartPole-v0", vector_entry_point=CartPoleVectorEnv)
