"""Environments in JAX: Brax (`brax.envs`) and MuJoCo Playground (`mujoco_playground`), through DLPack without a copy.

tensors of actions --DLPack--> one compiled step of all environments --DLPack--> tensors of observations
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.contrib.simulators.simulated import SimulatedEnv
from asyncrl.envs.tensors import map_tree

_EPISODE_LENGTH = 1000  # as in Brax's and Playground's own training


class JaxEnv(SimulatedEnv):
    """Many copies of an environment of Brax or Playground.

    An episode is truncated after `episode_length` steps of the physics' controller. A new one begins in the state in
    which that environment was reset first, as in the wrappers of both libraries, because a reset of all environments
    takes longer than a step. Metrics of the environment, summed over an episode, are its statistics.
    """

    def __init__(self, env: Any, num_envs: int, episode_length: int = _EPISODE_LENGTH, action_repeat: int = 1) -> None:
        """Takes an environment for one robot; compiles on the first reset and step."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs a part of the memory
        self._jax = jax = importlib.import_module("jax")
        observation = _space_of(env.observation_size)
        action = spaces.Box(-1.0, 1.0, (int(env.action_size),), np.float32)
        super().__init__(type(env).__name__, num_envs, observation, action, -(-episode_length // action_repeat))
        self._reset = jax.jit(jax.vmap(env.reset))
        self._step = jax.jit(_make_step(jax, env, episode_length, action_repeat))
        self._first: Any = None
        self._carry: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment; without a seed, the states are those of the seed 0."""
        jax = self._jax
        self._first = self._reset(jax.random.split(jax.random.PRNGKey(int(seed or 0)), self.num_envs))
        zeros = jax.numpy.zeros(self.num_envs)
        self._carry = self._first, zeros, dict.fromkeys(self._first.metrics, zeros)
        return map_tree(_as_tensor, self._first.obs), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments; `infos` has `final_obs` and the statistics of episodes."""
        action = self._jax.dlpack.from_dlpack(actions.detach().contiguous())
        self._carry, result = self._step(self._first, self._carry, action)
        obs, final_obs, reward, terminated, truncated, sums = map_tree(_as_tensor, result)
        infos = {"final_obs": final_obs, "episode_extra_stats": sums}
        return obs, reward, terminated != 0, truncated != 0, infos


def _make_step(jax: Any, env: Any, episode_length: int, action_repeat: int) -> Callable[..., Any]:
    """One step of all environments: from the first states, (states, steps, sums) and actions to these and results."""
    jnp, step_one = jax.numpy, jax.vmap(env.step)

    def step(first: Any, carry: Any, action: Any) -> Any:
        state, steps, sums = carry

        def repeat(before: Any, _: Any) -> Any:
            after = step_one(before, action)
            return after, (after.reward, after.metrics)

        before = state.replace(done=jnp.zeros_like(state.done))
        state, (rewards, metrics) = jax.lax.scan(repeat, before, None, length=action_repeat)
        steps = steps + action_repeat
        sums = {name: sums[name] + values.sum(0) for name, values in metrics.items()}
        terminated = (state.done != 0).astype(jnp.float32)
        truncated = (1.0 - terminated) * (steps >= episode_length)
        ended = (terminated + truncated) > 0

        def begin(again: Any, now: Any) -> Any:
            if now.shape[:1] != ended.shape:  # the same for all environments
                return now
            return jnp.where(ended.reshape(ended.shape + (1,) * (now.ndim - 1)), again, now)

        physics = "data" if hasattr(state, "data") else "pipeline_state"
        begun = {
            physics: jax.tree.map(begin, getattr(first, physics), getattr(state, physics)),
            "obs": jax.tree.map(begin, first.obs, state.obs),
        }
        result = begun["obs"], state.obs, rewards.sum(0), terminated, truncated, sums
        none = jnp.zeros_like(steps)
        kept = {name: jnp.where(ended, none, each) for name, each in sums.items()}
        return (state.replace(**begun), jnp.where(ended, none, steps), kept), result

    return step


def brax_maker(name: str) -> Callable[..., JaxEnv]:
    """The function that makes the environment `name` of Brax."""

    def make(num_envs: int, episode_length: int = _EPISODE_LENGTH, action_repeat: int = 1, **kwargs: Any) -> JaxEnv:
        module = importlib.import_module("brax.envs")
        _check_name("brax", name, getattr(module, "_envs", (name,)))
        made = module.get_environment(name, **kwargs)
        return JaxEnv(made, num_envs, episode_length, action_repeat)

    return make


def playground_maker(name: str) -> Callable[..., JaxEnv]:
    """The function that makes the environment `name` of MuJoCo Playground."""

    def make(num_envs: int, **config: Any) -> JaxEnv:
        registry = importlib.import_module("mujoco_playground").registry
        _check_name("mujoco_playground", name, registry.ALL_ENVS)
        defaults = registry.get_default_config(name)
        made = registry.load(name, config_overrides=config)
        length, repeat = (int(config.get(key, defaults[key])) for key in ("episode_length", "action_repeat"))
        return JaxEnv(made, num_envs, length, repeat)

    return make


def _check_name(package: str, name: str, known: Iterable[str]) -> None:
    names = sorted(known)
    if name not in names:
        hint = nearest_hint(name, names)
        raise UsageError(f"{package} has no environment {name!r}{hint}. It has {', '.join(names)}.")


def _space_of(size: Any) -> spaces.Space[Any]:
    """The space of `observation_size`: a number, a shape, or these by key."""
    if isinstance(size, Mapping):
        return spaces.Dict({key: _space_of(inner) for key, inner in size.items()})
    shape = tuple(size) if isinstance(size, (tuple, list)) else (int(size),)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _as_tensor(array: Any) -> Tensor:
    tensor: Tensor = from_dlpack(array)
    return tensor
