"""Isaac Lab (`isaaclab.envs`) and mjlab (`mjlab.envs`), whose environments have the same interface.

Tested against fakes of their documented interface only.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from asyncrl.contrib.simulators.simulated import SimulatedEnv
from asyncrl.envs.tensors import map_tree


class IsaacLabEnv(SimulatedEnv):
    """Observations are the groups of the environment, such as `policy` and `critic`; `policy` alone is not a Dict.

    The environment is reset within a step and does not return the final observation. After a time-out the observation
    before the step stands in for it, so that a return is bootstrapped with the value before the last step, as in
    RSL-RL. `extras["log"]`, means over the environments that were reset, becomes statistics of their episodes.
    """

    def __init__(self, env: Any) -> None:
        """Takes an environment, perhaps made by `gymnasium.make` and in wrappers that keep its spaces."""
        inner = env.unwrapped
        # Wrappers of others have another interface.
        self._env: Any = env if isinstance(env, gymnasium.Wrapper) else inner
        observation = _as_space(inner.single_observation_space)
        self._is_policy_only = isinstance(observation, spaces.Dict) and list(observation.spaces) == ["policy"]
        if self._is_policy_only:
            observation = observation["policy"]
        action = _as_space(inner.single_action_space)
        super().__init__(type(inner).__name__, int(inner.num_envs), observation, action, int(inner.max_episode_length))
        self._before: Any = None
        self._log: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment."""
        self._before = self._observed(self._env.reset(seed=seed)[0])
        return self._before, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments; `infos` has `final_obs` and the statistics of episodes."""
        final_obs = self._before
        obs, reward, terminated, truncated, extras = self._env.step(actions)
        self._before = self._observed(obs)
        infos: dict[str, Any] = {"final_obs": final_obs}
        log = extras.get("log", extras.get("episode"))
        if log and log is not self._log:  # each reset makes a new one
            self._log = log
            infos["episode_extra_stats"] = {
                name: torch.as_tensor(value, dtype=torch.float32, device=reward.device).expand(self.num_envs)
                for name, value in log.items()
            }
        return self._before, reward, terminated.bool(), truncated.bool(), infos

    def close(self, **kwargs: Any) -> None:
        """Closes the environment."""
        self._env.close()

    def _observed(self, obs: Any) -> Any:
        """A copy: the simulator may overwrite its buffers."""
        return map_tree(torch.clone, obs["policy"] if self._is_policy_only else obs)


def _as_space(space: Any) -> Any:
    """Gymnasium's space of a space of mjlab, which has the same attributes."""
    if isinstance(space, spaces.Space):
        return space
    if hasattr(space, "spaces"):
        return spaces.Dict({name: _as_space(inner) for name, inner in space.spaces.items()})
    return spaces.Box(space.low, space.high, tuple(space.shape), np.float32)
