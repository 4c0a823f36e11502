"""Checks Gymnasium's interface of `reset` and `step` and explains differences in its terms."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorWrapper
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from asyncrl.config.errors import UsageError
from asyncrl.envs.agents import AgentsEnv
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.observations import leaf_of
from asyncrl.envs.results import (
    describe,
    extra_stats_problem,
    is_flag,
    is_number,
    reset_error_problem,
    values_problem,
    wrong_value,
)
from asyncrl.envs.spaces import ACTION_MASK, check_observation, has_action_mask
from asyncrl.envs.spec import EnvSpec

NO_LIMIT = 2**62
_STEPS, _STEPPING_S = 10, 1.0
_OF_PACKAGES = ("gymnasium", "ale_py", "asyncrl")  # environments and adapters that a user cannot correct
_TAKES_INFO = "set_training_info"
_DEFAULT_SHAPING, _TAKES_SHAPING = "get_default_reward_shaping", "set_reward_shaping"
_NORMALIZING = {"NormalizeObservation": "--normalize_input", "NormalizeReward": "--normalize_returns"}
FloatArray = npt.NDArray[np.float64]
Look = Callable[[Any, Any, int], None]
"""Gets an observation (None of an agent that is not observed), an info and the number of the agent."""
_FLOAT64_NOISE = 1e-12  # relative
_FEWEST_FLOAT32_STEPS = 8
_HANDLED = ("infinity", "symmetric and normalized")  # remarks on spaces that training handles


def without_bookkeeping(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], int]:
    """Removes the outermost wrappers whose work `EnvGroup` does, because each adds a call to every step.

    Returns the inner environment, and its time limit in steps, or `NO_LIMIT`.
    """
    limit = NO_LIMIT
    while isinstance(env, gymnasium.Wrapper) and type(env) in (TimeLimit, OrderEnforcing):
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit


def stats_of_ends(infos: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a vectorized environment tells of episodes that end: `episode_extra_stats`, and `is_success`, by name.

    In mode SAME_STEP Gymnasium puts it into `final_info`. Each is an array `[E]`, and one of the environments that have
    the number, `[E] bool`, or None if all have it.
    """
    infos = infos.get("final_info", infos)
    found = infos.get("episode_extra_stats", {}) if isinstance(infos, dict) else {}
    if "is_success" in infos:
        found = {**found, "is_success": infos["is_success"], "_is_success": infos.get("_is_success")}
    return {
        name: (values, found.get(f"_{name}"))
        for name, values in found.items()
        if not (name.startswith("_") and name[1:] in found) and not isinstance(values, Mapping)
    }


def wrapper_findings(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Gymnasium's wrappers around an environment, single or vectorized, that normalize what the run normalizes."""
    names: set[str] = set()
    for outer in (env, getattr(env.unwrapped, "vector_env", None)):  # of a `SingleEnv`
        while isinstance(outer, (gymnasium.Wrapper, VectorWrapper)):
            names.update(kind.__name__ for kind in type(outer).__mro__)
            outer = outer.env
    return [
        f"{name} keeps statistics of its own in each environment and they are not saved: leave it out, {flag} does this"
        for name, flag in _NORMALIZING.items()
        if name in names
    ]


def give_training_info(env: Any, info: Mapping[str, Any]) -> None:
    """Calls `set_training_info` of a single or vectorized environment, if it or one of its wrappers has this method."""
    if (method := find_method(env, _TAKES_INFO)) is not None:
        method(dict(info))


def takes_training_info(env: Any) -> bool:
    """Whether an environment or one of its wrappers has a method `set_training_info`."""
    return find_method(env, _TAKES_INFO) is not None


def give_reward_shaping(env: Any, shaping: Mapping[str, float], agent: int) -> None:
    """Gives an environment the factors of its reward for one agent, or for one of a vectorized environment's.

    Raises:
        TypeError: it has no method for them: a vectorized implementation of an environment that has one.
    """
    method = find_method(env, _TAKES_SHAPING)
    if method is None:
        raise TypeError(f"{type(env).__name__} has no {_TAKES_SHAPING}(), which its single environments have")
    method(dict(shaping), agent)


def default_reward_shaping(env: Any, env_id: str) -> tuple[tuple[str, float], ...]:
    """Names and values of what `set_reward_shaping` of an environment takes; empty if it has no such method.

    Raises:
        UsageError: `get_default_reward_shaping` did not return numbers by name.
    """
    method = find_method(env, _DEFAULT_SHAPING)
    found = None if method is None or find_method(env, _TAKES_SHAPING) is None else method()
    if found is None:
        return ()
    if not isinstance(found, Mapping) or not all(isinstance(each, (int, float)) for each in found.values()):
        raise UsageError(f"{env_id}: {_DEFAULT_SHAPING}() returned {found!r}; expected a dict of numbers by name.")
    return tuple((str(name), float(value)) for name, value in found.items())


def find_method(env: Any, name: str) -> Any:
    """A method of an environment of any kind, or of one of its wrappers; None if nothing has it."""
    if isinstance(env, gymnasium.Env):
        if env.has_wrapper_attr(name):
            return env.get_wrapper_attr(name)
        inner = env.unwrapped
        inside = inner.env if isinstance(inner, AgentsEnv) else getattr(inner, "vector_env", None)  # of a `SingleEnv`
        return None if inside is None else find_method(inside, name)
    return getattr(env, name, None) or getattr(getattr(env, "unwrapped", None), name, None)


def checked_reset(env: gymnasium.Env[Any, Any], env_id: str, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Resets the environment and returns its observation and info.

    Raises:
        UsageError: `reset` does not take a seed, or does not return an observation and a dict.
    """
    try:
        result = env.reset(seed=seed)
    except TypeError as error:
        if (problem := reset_error_problem(error)) is None:
            raise
        raise UsageError(f"{env_id}: {problem}.") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise UsageError(f"{env_id}: reset() returned {describe(result)}; Gymnasium expects (observation, info dict).")
    return result


def step_problem(result: Any, is_end: bool = False) -> str | None:
    """What in a result of `step` is not as it must be, or None.

    Args:
        result: what `step` returned.
        is_end: the step has ended the episode, whatever the result says: what is read at an end is compared, too.
    """
    if (problem := values_problem(result)) is not None:
        return problem
    _, reward, terminated, truncated, info = result
    if not is_number(reward) or np.ndim(reward) != 0:
        return wrong_value("reward", reward, "Gymnasium expects a number")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not is_flag(value):
            return wrong_value(name, value, "Gymnasium expects True or False")
    if not isinstance(info, dict):
        return wrong_value("info", info, "Gymnasium expects a dict")
    if not (is_end or terminated or truncated):
        return None
    return extra_stats_problem(info)


def numbers_at_end(info: Mapping[str, Any]) -> dict[str, float]:
    """What an environment tells of an episode that ended: the numbers in `episode_extra_stats`, and `is_success`.

    An exception is raised if they cannot be read; `step_problem` says why.
    """
    extra_stats, is_success = info.get("episode_extra_stats"), info.get("is_success")
    numbers = {} if extra_stats is None else numbers_among(extra_stats)
    if is_success is not None:
        numbers["is_success"] = float(is_success)
    return numbers


def numbers_among(values: Mapping[Any, Any]) -> dict[str, float]:
    """The values that are single numbers, by name."""
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, (int, float, np.number, np.bool_))
    }


class RoundingCheck:
    """Finds numbers whose changes are lost when observations become rows of float32.

    An example is the time in seconds since 1970: float32 numbers of that size are 128 apart.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._kinds = [spec.kinds[spec.kind_of(agent)] for agent in range(spec.num_agents)]
        self._ranges: dict[tuple[str, tuple[int, ...]], tuple[FloatArray, FloatArray]] = {}

    def look(self, observation: Any, info: Any, agent: int = 0) -> None:
        """Adds an observation that fits its space; arrays that float32 holds exactly are left out."""
        for part in () if observation is None else self._kinds[agent].observation.parts:
            array = np.asarray(leaf_of(observation, part)) if part.kind == "numbers" else np.empty(0, np.float32)
            if not np.can_cast(array.dtype, np.float32):
                values = array.astype(np.float64)
                lowest, highest = self._ranges.get((part.name, part.shape), (values, values))
                self._ranges[part.name, part.shape] = np.fmin(lowest, values), np.fmax(highest, values)

    @property
    def findings(self) -> list[str]:
        """A sentence about the first such number of each array."""
        found = []
        for (name, _), (lowest, highest) in self._ranges.items():
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                largest, change = np.fmax(abs(lowest), abs(highest)), highest - lowest
                spacing = np.spacing(largest.astype(np.float32)).astype(np.float64)
                # Smaller changes are rounding errors of the environment's own float64 arithmetic.
                is_lost = (change > _FLOAT64_NOISE * largest) & (change < _FEWEST_FLOAT32_STEPS * spacing)
            for at in np.argwhere(is_lost)[:1]:
                place = tuple(at.tolist())
                where = f"{name}{list(place)}" if place else name
                found.append(
                    f"{where} has numbers of about {largest[place]:.3g} that differ by {change[place]:.3g} in the "
                    f"first steps, but observations are stored as float32, whose numbers of this size are "
                    f"{spacing[place]:.3g} apart: return the difference from a fixed number, or another unit"
                )
        return found


def try_out(
    env: gymnasium.Env[Any, Any],
    spec: EnvSpec,
    enter: Callable[[str], None],
    looks: Sequence[Look] = (),
    seed: int = 0,
) -> None:
    """Resets the environment and makes a few steps with actions of its action space.

    Args:
        env: as training uses it.
        spec: its spaces.
        enter: called with the name of each method before the method is called.
        looks: called with each observation, except for a terminated episode's last one, which is not used.
        seed: of the first reset.

    Raises:
        UsageError: a result differs from Gymnasium's interface, or an observation from its space.
    """
    if isinstance(env, AgentsEnv):
        _try_out_agents(env, spec, enter, looks, seed)
        return
    inner, _ = without_bookkeeping(env)
    enter("reset()")
    observation, info = checked_reset(inner, spec.env_id, seed)
    check_observation(observation, spec, "reset()")
    for look in looks:
        look(observation, info, 0)
    started = time.monotonic()
    for _ in range(_STEPS):
        action = allowed_action((inner.observation_space, inner.action_space), observation)
        if action is None:
            return
        enter("step()")
        result = inner.step(action)
        if (problem := step_problem(result)) is not None:
            raise UsageError(f"{spec.env_id}: {problem}.")
        observation, _, terminated, truncated, info = result
        if not terminated:
            check_observation(observation, spec, "step()")
            for look in looks:
                look(observation, info, 0)
        if time.monotonic() - started > _STEPPING_S:
            return
        if terminated or truncated:
            enter("reset()")
            observation, _ = checked_reset(inner, spec.env_id, seed)


def _try_out_agents(
    env: AgentsEnv,
    spec: EnvSpec,
    enter: Callable[[str], None],
    looks: Sequence[Look],
    seed: int,
) -> None:
    started = time.monotonic()
    enter("reset()")
    state = env.reset(seed=seed)[0]
    if not any(state.moves):
        raise UsageError(f"{spec.env_id}: no agent is to move after reset().")
    source = "reset()"
    for _ in range(_STEPS):
        infos = state.infos if isinstance(state.infos, Mapping) else dict(zip(env.agents, state.infos, strict=True))
        for agent, obs in enumerate(state.obs):
            if obs is not None:
                check_observation(obs, spec.kinds[spec.kind_of(agent)], source)
            for look in looks:
                look(obs, infos.get(env.agents[agent]), agent)
        # Environments that are lists get an action of each agent, also of those that do not move.
        actions = [
            allowed_action(spaces, obs) if moves or obs is not None else None
            for spaces, obs, moves in zip(env.spaces, state.obs, state.moves, strict=True)
        ]
        if time.monotonic() - started > _STEPPING_S or any(
            moves and action is None for moves, action in zip(state.moves, actions, strict=True)
        ):
            return
        enter("reset()" if state.is_over else "step()")
        source = "reset()" if state.is_over else "step()"
        state = env.reset()[0] if state.is_over else env.step(actions)[0]


def checker_findings(env: gymnasium.Env[Any, Any]) -> list[str] | None:
    """Findings of Gymnasium's `check_env` about an environment without its wrappers; None if it is not checked.

    Environments of Gymnasium, ALE and of several agents are not checked. The checker does not support action masks.
    """
    from gymnasium.utils.env_checker import check_env

    if isinstance(env, AgentsEnv):
        return None
    inner = env.unwrapped
    if type(inner).__module__.split(".")[0] in _OF_PACKAGES or has_action_mask(inner.observation_space):
        return None
    findings: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(inner, skip_render_check=True, skip_close_check=True)
        except ENVIRONMENT_EXCEPTIONS as error:
            is_finding = isinstance(error, AssertionError)
            findings.append(str(error) if is_finding else f"{type(error).__name__}: {error}")
    findings += [str(warning.message) for warning in caught]
    without_color = (re.sub(r"\x1b\[\d+m", "", text) for text in findings)
    plain = [" ".join(text.removeprefix("WARN: ").split()) for text in without_color]
    return [text for text in dict.fromkeys(plain) if not any(part in text for part in _HANDLED)]


def allowed_action(spaces: tuple[Any, Any], observation: Any) -> Any:
    """A random action that the mask in the observation allows; None if the space cannot sample with a mask.

    Args:
        spaces: of observations and of actions.
        observation: one of the first space.
    """
    observation_space, space = spaces
    if not has_action_mask(observation_space):
        return space.sample()
    mask = np.asarray(observation[ACTION_MASK], dtype=np.int8).reshape(-1)
    if isinstance(space, gymnasium.spaces.Discrete):
        return space.sample(mask=mask)
    if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return space.sample(mask=tuple(np.split(mask, np.cumsum(space.nvec)[:-1])))
    return None
