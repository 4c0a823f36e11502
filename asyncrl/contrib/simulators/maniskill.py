"""ManiSkill 3 (`mani_skill`). Tested against fakes of its documented interface only."""

from __future__ import annotations

import importlib
from typing import Any

from gymnasium.vector import VectorEnv

from asyncrl.contrib.simulators.simulated import SimulatedEnv


class ManiSkillEnv(SimulatedEnv):
    """An environment made by `gymnasium.make(ID, num_envs=...)`, or a `ManiSkillVectorEnv`."""

    def __init__(self, env: Any) -> None:
        """Takes the environment; one that is not vectorized yet is wrapped by ManiSkill's `ManiSkillVectorEnv`."""
        if not isinstance(env, VectorEnv):
            wrappers = importlib.import_module("mani_skill.vector.wrappers.gymnasium")
            env = wrappers.ManiSkillVectorEnv(env, auto_reset=True)
        self._env = env
        spec = getattr(env, "spec", None)
        name = type(env.unwrapped).__name__ if spec is None else spec.id
        most_steps = None if spec is None else spec.max_episode_steps
        super().__init__(name, env.num_envs, env.single_observation_space, env.single_action_space, most_steps)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in every environment."""
        return self._env.reset(seed=seed)[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments; `infos` has `final_obs`, and `is_success` of tasks that can succeed."""
        obs, reward, terminated, truncated, found = self._env.step(actions)
        infos = {"final_obs": found.get("final_observation", obs)}
        ended = found.get("final_info", found)
        if "success" in ended:
            infos["is_success"] = ended["success"]
        return obs, reward, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Closes the environment."""
        self._env.close()
