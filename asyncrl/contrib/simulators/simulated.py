"""What adapters of simulators have in common."""

from __future__ import annotations

from typing import Any

from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class SimulatedEnv(VectorEnv[Any, Any, Any]):
    """A vectorized environment of tensors that is reset in the step that ends an episode (SAME_STEP)."""

    def __init__(
        self, name: str, num_envs: int, observation: Space[Any], action: Space[Any], most_steps: int | None
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space, self.action_space = batch_space(observation, num_envs), batch_space(action, num_envs)
        self.spec = EnvSpec(id=name, max_episode_steps=most_steps)
