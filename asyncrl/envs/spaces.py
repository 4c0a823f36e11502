"""Reads Gymnasium's spaces into plain data and says in one sentence which are not supported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from asyncrl.config.errors import UsageError
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec


def read_spec(env: gymnasium.Env[Any, Any], env_id: str) -> EnvSpec:
    """What `env` observes and takes.

    Raises:
        UsageError: a space that is not supported.
    """
    observation = env.observation_space
    if not isinstance(observation, spaces.Box) or len(observation.shape) != 1 or observation.shape[0] == 0:
        raise UsageError(
            f"the observations of {env_id} are {observation}: only Box observations of one dimension are supported."
        )
    return EnvSpec(
        env_id=env_id,
        observation_size=int(observation.shape[0]),
        observation_dtype=np.dtype(observation.dtype).name,
        action=_read_action(env.action_space, env_id),
        max_episode_steps=env.spec.max_episode_steps if env.spec is not None else None,
    )


def check_observation(observation: Any, spec: EnvSpec) -> None:
    """Compares what `reset` returned with what the space promised.

    Raises:
        UsageError: another number of elements, or no numbers at all.
    """
    array = np.asarray(observation)
    if array.shape != (spec.observation_size,) or array.dtype.kind not in "iufb":
        raise UsageError(
            f"{spec.env_id} returned an observation of shape {array.shape} and dtype {array.dtype} from reset(), but "
            f"its observation_space promises shape ({spec.observation_size},) and dtype {spec.observation_dtype}."
        )


def _read_action(space: spaces.Space[Any], env_id: str) -> BoxAction | DiscreteAction:
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f" and space.low.size > 0:
        return BoxAction(
            shape=tuple(int(size) for size in space.shape),
            low=tuple(float(bound) for bound in space.low.reshape(-1)),
            high=tuple(float(bound) for bound in space.high.reshape(-1)),
            dtype=np.dtype(space.dtype).name,
        )
    raise UsageError(f"the actions of {env_id} are {space}: only Discrete and Box (of floats) actions are supported.")
