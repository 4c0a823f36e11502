"""Converts Gymnasium's spaces to plain data; a space that is not supported raises one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ImageChannels
from asyncrl.envs.agents import AgentsEnv
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
    Path,
    TreeAction,
    find_channels,
    has_axes_of_image,
    has_shape_of_image,
    mask_layout,
    stored_action,
)
from asyncrl.processes.seeding import Stream, derive_seed

ACTION_MASK = "action_mask"
"""Key of a Dict observation: 1 or 0 for each choice of the action, whether it is allowed, choices concatenated."""

_INNER = ("env", "envs", "vector_env", "aec_env", "par_env")
"""Attributes in which wrappers have what they wrap, which may be no class of Gymnasium."""
_MOST_CHOICES = 4096  # stored as one-hot numbers
_MOST_INTEGERS = 1024  # of one element of a bounded Box of integers as an action


def read_spec(
    env: gymnasium.Env[Any, Any], env_id: str, image_channels: ImageChannels = "auto", image_keys: Collection[str] = ()
) -> EnvSpec:
    """The spaces of `env`; `image_channels` and `image_keys` as for `spec_of_spaces`.

    Raises:
        UsageError: a space that is missing or not supported, or agents with spaces that cannot be in one run.
    """
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise UsageError(f"{env_id} has no {name}: set it in `__init__`.")
    limit = _time_limit(env)
    spec = spec_of_spaces(env.observation_space, env.action_space, env_id, limit, image_channels, image_keys)
    spec = dataclasses.replace(spec, computes_reward=env.has_wrapper_attr("compute_reward"))
    return _with_agents(spec, env, image_channels, image_keys) if isinstance(env, AgentsEnv) else spec


def seed_spaces(env: Any, seed: int) -> None:
    """Seeds all spaces of an environment, so that the samples that its code draws from them follow from `seed`."""
    for number, space in enumerate(_all_spaces(env)):
        space.seed(derive_seed(seed, Stream.SPACES, number))


@contextlib.contextmanager
def restoring_spaces(envs: Iterable[Any]) -> Iterator[None]:
    """Restores the generators of all spaces of environments at its end: other environments may share the spaces.

    They do if the spaces are attributes of their class.
    """
    found = [(space, space.np_random) for env in envs for space in _all_spaces(env)]
    kept = [(space, generator, generator.bit_generator.state) for space, generator in found]
    try:
        yield
    finally:
        for space, generator, state in kept:
            space._np_random, generator.bit_generator.state = generator, state


def _all_spaces(env: Any) -> list[spaces.Space[Any]]:
    """The spaces of an environment and of all that it wraps, with their parts, and others that it keeps; each once."""
    found: dict[int, spaces.Space[Any]] = {}

    def add(value: Any) -> None:
        if isinstance(value, (tuple, list, Mapping)):
            for part in value.values() if isinstance(value, Mapping) else value:
                if isinstance(part, (spaces.Space, tuple)):
                    add(part)
        elif isinstance(value, spaces.Space) and id(value) not in found:
            found[id(value)] = value
            for part in vars(value).values():
                add(part)

    layers, seen = [env], set()
    while layers:
        layer = layers.pop(0)
        seen.add(id(layer))
        attributes = {name: value for kind in reversed(type(layer).__mro__) for name, value in vars(kind).items()}
        for name, value in {**attributes, **getattr(layer, "__dict__", {})}.items():
            add(value)
            inner = value if isinstance(value, (tuple, list)) else [value]
            layers += [
                each
                for each in inner
                if id(each) not in seen and (name in _INNER or isinstance(each, (gymnasium.Env, VectorEnv)))
            ]
    return list(found.values())


def _time_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """The time limit in steps that is registered or that a wrapper has; None without one."""
    limits = [] if env.spec is None or env.spec.max_episode_steps is None else [env.spec.max_episode_steps]
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def _with_agents(spec: EnvSpec, env: AgentsEnv, image_channels: ImageChannels, image_keys: Collection[str]) -> EnvSpec:
    of_agents = [
        AgentSpaces(found.observation, found.action)
        for own in env.spaces
        for found in [spec_of_spaces(*own, spec.env_id, spec.max_episode_steps, image_channels, image_keys)]
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
    image_keys: Collection[str] = (),
) -> EnvSpec:
    """The `EnvSpec` of these spaces.

    Args:
        observation: observation space.
        action: action space.
        env_id: for messages.
        max_episode_steps: time limit; None if there is none.
        image_channels: channel axis of images; auto derives it from their shapes (`find_channels`).
        image_keys: names of arrays that are images; `all` is each that has the shape of one. Other arrays are images if
            they are uint8 and have the shape of one.
    """
    read_action = _read_action(action, env_id)
    read_observation = _read_observation(observation, read_action, env_id, image_channels, image_keys)
    return EnvSpec(env_id, read_observation, read_action, max_episode_steps)


def _read_observation(
    space: spaces.Space[Any], action: Action, env_id: str, image_channels: ImageChannels, image_keys: Collection[str]
) -> ObservationLayout:
    has_mask = has_action_mask(space)
    leaves = _leaves(space, f"The observations of {env_id}")
    parts = [
        _read_part(path, leaf, env_id, image_channels, image_keys)
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


def _read_part(
    path: Path, space: spaces.Space[Any], env_id: str, image_channels: ImageChannels, image_keys: Collection[str]
) -> ObservationPart:
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype).name
    if isinstance(space, spaces.Box):
        channels = find_channels(shape) if image_channels == "auto" else image_channels
        part = ObservationPart(path, "numbers", shape, dtype, channels=channels, largest=_largest(space))
        has_shape = has_shape_of_image(shape, channels) and dtype == "uint8"
        if not (has_shape or (has_axes_of_image(shape) and part.is_in(image_keys))):
            return part
        return dataclasses.replace(part, kind="image") if dtype == "uint8" else dataclasses.replace(part, is_image=True)
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
        layout = f": {mask_layout(action)}" if isinstance(action, TreeAction) and action.num_logits else ""
        raise UsageError(
            f"The observations of {env_id} have {ACTION_MASK} {space}: it must be a MultiBinary or Box with one "
            f"number for each choice, and its actions have {action.num_logits} choices{layout}."
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
