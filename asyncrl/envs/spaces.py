"""Converts Gymnasium's spaces to plain data; a space that is not supported raises one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ImageChannels
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.goals import COMPUTE_REWARD
from asyncrl.envs.observations import ObservationCodec, ObservationMismatch
from asyncrl.envs.spec import (
    Action,
    AgentSpaces,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    LeafAction,
    MultiDiscreteAction,
    ObservationLayout,
    ObservationPart,
    PartKind,
    Path,
    TreeAction,
    find_channels,
    has_shape_of_image,
    stored_action,
)

ACTION_MASK = "action_mask"
"""Key of a Dict observation: 1 or 0 for each choice of the action, whether it is allowed, choices concatenated."""

_MOST_CHOICES = 4096  # stored as one-hot numbers
_MOST_INTEGERS = 1024  # of one element of a bounded Box of integers as an action


def read_spec(env: gymnasium.Env[Any, Any], env_id: str, image_channels: ImageChannels = "auto") -> EnvSpec:
    """The spaces of `env`.

    Raises:
        UsageError: a space that is missing or not supported, or agents with spaces that cannot be in one run.
    """
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise UsageError(f"{env_id} has no {name}: set it in `__init__`.")
    limit = _time_limit(env)
    spec = spec_of_spaces(env.observation_space, env.action_space, env_id, limit, image_channels)
    spec = dataclasses.replace(spec, computes_reward=env.has_wrapper_attr(COMPUTE_REWARD))
    return _with_agents(spec, env, image_channels) if isinstance(env, AgentsEnv) else spec


def _time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """The time limit in steps that is registered or that a wrapper has; None without one."""
    limits = [] if env.spec is None or env.spec.max_episode_steps is None else [env.spec.max_episode_steps]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def _with_agents(spec: EnvSpec, env: AgentsEnv, image_channels: ImageChannels) -> EnvSpec:
    of_agents = [
        AgentSpaces(found.observation, found.action)
        for own in env.spaces
        for found in [spec_of_spaces(*own, spec.env_id, spec.max_episode_steps, image_channels)]
    ]
    distinct = tuple(dict.fromkeys(of_agents))
    spec = dataclasses.replace(spec, agents=env.agents)
    if len(distinct) == 1:
        return spec
    first = distinct[0]
    for own in distinct:
        agents = f"{env.agents[0]} has {{}}, {env.agents[of_agents.index(own)]} has {{}}"
        if own.observation.row_dtype != first.observation.row_dtype:
            found = agents.format(first.observation, own.observation)
            raise UsageError(
                f"Agents of {spec.env_id} observe images and others do not, which is not supported: {found}."
            )
        if stored_action(own.action)[0] != stored_action(first.action)[0]:
            found = agents.format(first.action, own.action)
            raise UsageError(
                f"Agents of {spec.env_id} make a single choice and others have actions of another kind, which is not "
                f"supported: {found}."
            )
    return dataclasses.replace(spec, spaces=distinct, of_agents=tuple(map(distinct.index, of_agents)))


def spec_of_spaces(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    env_id: str,
    max_episode_steps: int | None,
    image_channels: ImageChannels = "auto",
) -> EnvSpec:
    """The `EnvSpec` of these spaces.

    Args:
        observation: observation space.
        action: action space.
        env_id: for messages.
        max_episode_steps: time limit; None if there is none.
        image_channels: channel axis of images; auto derives it from their shapes (`find_channels`).
    """
    read_action = _read_action(action, env_id)
    read_observation = _read_observation(observation, read_action, env_id, image_channels)
    return EnvSpec(env_id, read_observation, read_action, max_episode_steps)


def _read_observation(
    space: spaces.Space[Any], action: Action, env_id: str, image_channels: ImageChannels
) -> ObservationLayout:
    has_mask = has_action_mask(space)
    leaves = _leaves(space, f"The observations of {env_id}")
    parts = [
        _read_part(path, leaf, env_id, image_channels)
        for path, leaf in leaves
        if not (has_mask and path[0] == ACTION_MASK)
    ]
    parts = [part for part in parts if part.size > 0]
    if not parts:
        raise UsageError(f"The observations of {env_id} are {space}: there is nothing in them to learn from.")
    if has_mask:
        assert isinstance(space, spaces.Dict)
        parts.append(_read_mask(space[ACTION_MASK], action, env_id))
    return ObservationLayout(tuple(parts))


def has_action_mask(space: spaces.Space[Any]) -> bool:
    """Whether observations contain a mask of allowed choices."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces


def _read_part(path: Path, space: spaces.Space[Any], env_id: str, image_channels: ImageChannels) -> ObservationPart:
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype).name
    if isinstance(space, spaces.Box):
        channels = find_channels(shape) if image_channels == "auto" else image_channels
        is_image = dtype == "uint8" and has_shape_of_image(shape, channels)
        kind: PartKind = "image" if is_image else "numbers"
        return ObservationPart(path, kind, shape, dtype, channels=channels, largest=_largest(space))
    if isinstance(space, spaces.MultiBinary):
        return ObservationPart(path, "flags", shape, dtype)
    num_choices, starts = _choices_of(space)
    if sum(num_choices) > _MOST_CHOICES:
        raise UsageError(
            f"The observations of {env_id} have {_where(path)}{space}: {sum(num_choices)} choices are more than the "
            f"{_MOST_CHOICES} that are supported; a wrapper may turn them into a Box."
        )
    return ObservationPart(path, "choices", shape, dtype, num_choices, starts)


def _largest(space: spaces.Box) -> float | None:
    """The largest magnitude of a number; None without bounds, for which some spaces have float32's largest number."""
    largest = np.abs(np.concatenate((space.low, space.high), axis=None).astype(np.float64)).max(initial=0.0)
    return float(largest) if largest < np.finfo(np.float32).max else None


def _read_mask(space: spaces.Space[Any], action: Action, env_id: str) -> ObservationPart:
    shape = tuple(space.shape or ())
    is_array = isinstance(space, (spaces.Box, spaces.MultiBinary))
    if not is_array or action.num_logits == 0 or int(np.prod(shape)) != action.num_logits:
        raise UsageError(
            f"The observations of {env_id} have {ACTION_MASK} {space}: it must be a MultiBinary or Box with one "
            f"number for each choice, and its actions have {action.num_logits} choices."
        )
    return ObservationPart((ACTION_MASK,), "mask", shape, np.dtype(space.dtype).name)


def _read_action(space: spaces.Space[Any], env_id: str) -> Action:
    found = list(_leaves(space, f"The actions of {env_id}"))
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _read_leaf_action(space, (), env_id)
    if not found:
        raise UsageError(f"The actions of {env_id} are {space}: there is nothing to choose.")
    leaves = tuple(_read_leaf_action(leaf, path, env_id) for path, leaf in found)
    return TreeAction(leaves, tuple(path for path, _ in found))


def _read_leaf_action(space: spaces.Space[Any], path: Path, env_id: str) -> LeafAction:
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(n=int(space.n), start=int(space.start), dtype=np.dtype(space.dtype).name)
    shape, dtype = tuple(int(size) for size in space.shape or ()), np.dtype(space.dtype).name
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)) and int(np.prod(shape)) > 0:
        num_choices, starts = _choices_of(space)
        return MultiDiscreteAction(num_choices, starts, shape, dtype)
    if isinstance(space, spaces.Box) and space.low.size > 0:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        if np.dtype(space.dtype).kind == "f":
            return BoxAction(shape, tuple(map(float, low)), tuple(map(float, high)), dtype)
        counts = tuple(int(most) - int(least) + 1 for least, most in zip(low, high, strict=True))
        if max(counts) <= _MOST_INTEGERS:
            return MultiDiscreteAction(counts, tuple(map(int, low)), shape, dtype)
        raise UsageError(
            f"The actions of {env_id} have {_where(path)}{space}: at most {_MOST_INTEGERS} integers an element are "
            "supported."
        )
    raise UsageError(f"The actions of {env_id} have {_where(path)}{space}: there is nothing to choose.")


def _choices_of(space: spaces.Space[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Number of choices and first choice of each element."""
    if isinstance(space, spaces.Discrete):
        return (int(space.n),), (int(space.start),)
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return (2,) * size, (0,) * size
    assert isinstance(space, spaces.MultiDiscrete)
    start = getattr(space, "start", np.zeros_like(space.nvec))
    return tuple(int(n) for n in space.nvec.reshape(-1)), tuple(int(first) for first in start.reshape(-1))


def _leaves(space: spaces.Space[Any], whose: str, path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """All inner spaces other than Dict and Tuple, in order; `whose` begins the message of an error."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            if not isinstance(key, str):
                raise UsageError(f"{whose} have {_where(path)}{space}, whose keys must be texts, not {key!r}.")
            yield from _leaves(inner, whose, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for position, inner in enumerate(space.spaces):
            yield from _leaves(inner, whose, (*path, position))
    elif isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        yield path, space
    elif is_of_gym(space):
        raise UsageError(
            f"{whose} have {_where(path)}{space}, which is a space of the package gym: gymnasium.spaces is needed."
        )
    else:
        raise UsageError(
            f"{whose} have {_where(path)}{space}, which is not supported: spaces may be Box, Discrete, MultiDiscrete, "
            f"MultiBinary, and Dict and Tuple of them, but not {type(space).__name__}."
        )


def is_of_gym(thing: Any) -> bool:
    """Whether a class of the package gym, which Gymnasium has replaced, is in the place of one of Gymnasium's."""
    is_of_gymnasium = isinstance(thing, (gymnasium.Env, spaces.Space))
    return not is_of_gymnasium and any(own.__module__.partition(".")[0] == "gym" for own in type(thing).__mro__)


def _where(path: Path) -> str:
    return "/".join(map(str, path)) + ": " if path else ""


def check_observation(observation: Any, spec: EnvSpec, source: str) -> None:
    """Compares an observation with its space.

    Args:
        observation: result of `source`.
        spec: the spaces.
        source: "reset()" or "step()", for the message.

    Raises:
        UsageError: the observation does not fit the space.
    """
    row = np.zeros(spec.observation.row_size, dtype=spec.observation.row_dtype)
    try:
        ObservationCodec(spec.observation).write(observation, row)
    except ObservationMismatch as error:
        raise UsageError(
            f"{spec.env_id} returned an observation from {source} that does not match its observation_space: {error}."
        ) from error
