"""What adapters of simulators have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def map_tree(function: Callable[[Any], Any], nested: Any) -> Any:
    """Nested mappings and tuples with a function's results as leaves."""
    if isinstance(nested, Mapping):
        return {key: map_tree(function, inner) for key, inner in nested.items()}
    return tuple(map_tree(function, inner) for inner in nested) if isinstance(nested, tuple) else function(nested)
