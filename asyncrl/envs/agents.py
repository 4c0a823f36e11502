"""Environments of several agents as one form: PettingZoo's parallel and AEC environments, and lists of agents.

Every agent that an environment may have has a fixed place. What a reset or a step leads to is an `AgentsState`: for
each place the observation, the reward and the end of that agent's own episode, and whether it chooses the next action.
Environments in Sample Factory's style take and return lists and have `num_agents`; they reset by themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from asyncrl.config.errors import UsageError

_FAMILIES = ("classic", "butterfly", "sisl", "atari")
"""Packages of PettingZoo, in which an id without one is looked for."""
_HAS_NUM_AGENTS = (
    "It counts as an environment of several agents because it has the attribute num_agents: rename it if there is one "
    "agent."
)


@dataclass
class AgentsState:
    """What a reset or a step led to, for all N places of agents, in their order.

    Attributes:
        obs: next observation, or the final one of an agent whose episode ended; None where there is none: the agent is
            absent, or it is not to move and was not observed.
        is_present: whether the agent's episode goes on. An agent that was absent before begins one.
        moves: whether the agent chooses an action now. One that is present and does not move waits.
        reward: of the step.
        terminated, truncated: whether the step ended the agent's episode.
        is_over: whether the environment must be reset.
        extra_stats: the environment's own numbers of an episode that ended, for each agent, `is_success` among them.
    """

    obs: list[Any]
    is_present: list[bool]
    moves: list[bool]
    reward: list[float]
    terminated: list[bool]
    truncated: list[bool]
    is_over: bool
    extra_stats: list[Mapping[str, Any]]


class AgentsEnv(gymnasium.Env[AgentsState, Sequence[Any]]):
    """An environment of several agents as a `gymnasium.Env`, so that Gymnasium's wrappers can record it.

    Its spaces are those of the first agent. What it returns as the observation is the `AgentsState`; `terminated` says
    that the environment is over.

    Attributes:
        agents: names of the agents, in the order of their places.
        spaces: observation and action space of each agent.
        resets_itself: whether the observation after an episode's end is the first of the next episode.
    """

    resets_itself = False

    def __init__(self, agents: Sequence[str], env: Any, spaces: Sequence[tuple[Any, Any]]) -> None:
        self.agents = tuple(agents)
        self.spaces = tuple(spaces)
        self.observation_space, self.action_space = self.spaces[0]
        self.env = env
        self._was_present = [False] * len(self.agents)
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentsState, dict[str, Any]]:
        state = self._start(seed)
        self._was_present = state.is_present
        return state, {}

    def step(self, action: Sequence[Any]) -> tuple[AgentsState, float, bool, bool, dict[str, Any]]:
        """Takes a step with one action for each place; PettingZoo's environments get those of agents that move.

        Raises:
            UsageError: an agent is gone although its episode has not ended.
        """
        state = self._advance(action)
        for place, agent in enumerate(self.agents):
            is_gone = self._was_present[place] and (state.is_over or not state.is_present[place])
            if is_gone and not (state.terminated[place] or state.truncated[place]):
                raise UsageError(
                    f"{agent} is no longer among the agents after step(), but it is neither terminated nor truncated."
                )
        self._was_present = state.is_present
        return state, sum(state.reward), state.is_over, False, {}

    @abstractmethod
    def _start(self, seed: int | None) -> AgentsState: ...

    @abstractmethod
    def _advance(self, actions: Sequence[Any]) -> AgentsState: ...

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class ParallelAgents(AgentsEnv):
    """A parallel environment of PettingZoo: all of its agents move at the same time."""

    def __init__(self, env: Any, env_id: str) -> None:
        agents = _possible_agents(env, env_id)
        super().__init__(agents, env, [(env.observation_space(agent), env.action_space(agent)) for agent in agents])
        self._live: set[str] = set()

    def _start(self, seed: int | None) -> AgentsState:
        obs, _ = self.env.reset(seed=seed)
        return self._state(obs, {}, {}, {}, {})

    def _advance(self, actions: Sequence[Any]) -> AgentsState:
        chosen = {agent: action for agent, action in zip(self.agents, actions, strict=True) if agent in self._live}
        return self._state(*self.env.step(chosen))

    def _state(
        self,
        obs: Mapping[str, Any],
        reward: Mapping[str, float],
        terminated: Mapping[str, bool],
        truncated: Mapping[str, bool],
        infos: Mapping[str, Mapping[str, Any]],
    ) -> AgentsState:
        agents = self.agents
        self._live = set(self.env.agents)
        # Some environments still list agents whose episodes have ended.
        is_present = [agent in self._live and not (terminated.get(agent) or truncated.get(agent)) for agent in agents]
        has_terminated = [bool(terminated.get(agent)) for agent in agents]
        return AgentsState(
            obs=[obs.get(agent) for agent in agents],
            is_present=is_present,
            moves=is_present,
            reward=[float(reward.get(agent, 0.0)) for agent in agents],
            terminated=has_terminated,
            truncated=[
                bool(truncated.get(agent)) and not ended for agent, ended in zip(agents, has_terminated, strict=True)
            ],
            is_over=not any(is_present),
            extra_stats=[_extra_stats(infos.get(agent)) for agent in agents],
        )


class TurnAgents(AgentsEnv):
    """An AEC environment of PettingZoo: one agent after the other moves, the others wait."""

    def __init__(self, env: Any, env_id: str) -> None:
        agents = _possible_agents(env, env_id)
        super().__init__(agents, env, [(env.observation_space(agent), env.action_space(agent)) for agent in agents])
        self._place = {agent: place for place, agent in enumerate(self.agents)}

    def _start(self, seed: int | None) -> AgentsState:
        self.env.reset(seed=seed)
        return self._state()

    def _advance(self, actions: Sequence[Any]) -> AgentsState:
        self.env.step(actions[self._place[self.env.agent_selection]])
        return self._state()

    def _state(self) -> AgentsState:
        env, num_agents = self.env, len(self.agents)
        state = AgentsState(
            obs=[None] * num_agents,
            is_present=[False] * num_agents,
            moves=[False] * num_agents,
            reward=[0.0] * num_agents,
            terminated=[False] * num_agents,
            truncated=[False] * num_agents,
            is_over=False,
            extra_stats=[{}] * num_agents,
        )
        # Some environments remove all agents in the step that ends their episodes.
        gone = [agent for agent, was in zip(self.agents, self._was_present, strict=True) if was]
        for agent in (*env.agents, *(agent for agent in gone if agent not in env.agents)):
            place = self._place[agent]
            state.reward[place] = float(env.rewards.get(agent, 0.0))
            state.terminated[place] = has_terminated = bool(env.terminations.get(agent))
            state.truncated[place] = has_truncated = bool(env.truncations.get(agent)) and not has_terminated
            state.is_present[place] = agent in env.agents and not (has_terminated or has_truncated)
            if has_truncated:
                state.obs[place] = env.observe(agent)
            if has_terminated or has_truncated:
                state.extra_stats[place] = _extra_stats(env.infos.get(agent))
        # PettingZoo wants a last step without an action from each agent whose episode has ended.
        while env.agents and not state.is_present[self._place[env.agent_selection]]:
            env.step(None)
        if not env.agents:
            state.is_over = True
            return state
        place = self._place[env.agent_selection]
        state.moves[place] = True
        state.obs[place] = env.observe(env.agent_selection)
        return state


class ListedAgents(AgentsEnv):
    """An environment in Sample Factory's style: lists of `num_agents` values, and `is_active` in the infos."""

    resets_itself = True

    def __init__(self, env: Any, env_id: str, num_agents: int) -> None:
        spaces = [(env.observation_space, env.action_space)] * num_agents
        super().__init__([f"agent_{place}" for place in range(num_agents)], env, spaces)
        self.env_id = env_id

    def _start(self, seed: int | None) -> AgentsState:
        result = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(f"{self.env_id}: reset() must return two lists, observations and infos. {_HAS_NUM_AGENTS}")
        obs, infos = result
        nothing = [False] * len(self.agents)
        return self._state(obs, [0.0] * len(self.agents), nothing, nothing, infos)

    def _advance(self, actions: Sequence[Any]) -> AgentsState:
        result = self.env.step(list(actions))
        if not isinstance(result, tuple) or len(result) != 5:
            raise UsageError(
                f"{self.env_id}: step() must return five lists: observations, rewards, terminated, truncated, infos. "
                f"{_HAS_NUM_AGENTS}"
            )
        return self._state(*result)

    def _state(
        self,
        obs: Sequence[Any],
        reward: Sequence[float],
        terminated: Sequence[bool],
        truncated: Sequence[bool],
        infos: Sequence[Mapping[str, Any]],
    ) -> AgentsState:
        for name, values in (
            ("observations", obs),
            ("rewards", reward),
            ("terminated", terminated),
            ("truncated", truncated),
            ("infos", infos),
        ):
            if (length := _length(values)) != len(self.agents):
                found = f"one {type(values).__name__} as {name}" if length is None else f"{length} {name}"
                text = f"{self.env_id} returned {found}, but its num_agents is {len(self.agents)}"
                raise UsageError(f"{text}. {_HAS_NUM_AGENTS}")
        has_terminated = list(map(bool, terminated))
        return AgentsState(
            obs=list(obs),
            is_present=[True] * len(self.agents),
            moves=[bool(info.get("is_active", True)) for info in infos],
            reward=list(map(float, reward)),
            terminated=has_terminated,
            truncated=[bool(cut) and not ended for cut, ended in zip(truncated, has_terminated, strict=True)],
            is_over=False,
            extra_stats=list(map(_extra_stats, infos)),
        )


def _length(values: Any) -> int | None:
    """The number of values; None if `values` has no length."""
    try:
        return len(values)
    except TypeError:
        return None


def as_agents_env(env: Any, env_id: str) -> AgentsEnv | None:
    """The environment as an `AgentsEnv` if it is one of several agents, else None.

    Raises:
        UsageError: its agents cannot be trained together.
    """
    if isinstance(env, AgentsEnv):
        return env
    if isinstance(env, gymnasium.Env):
        num_agents = getattr(env.unwrapped, "num_agents", 1)
        return _listed_agents(env, env_id) if isinstance(num_agents, Integral) and int(num_agents) > 1 else None
    if hasattr(env, "agent_selection") or hasattr(env, "agent_iter"):
        return TurnAgents(env, env_id)
    return ParallelAgents(env, env_id) if hasattr(env, "possible_agents") or hasattr(env, "agents") else None


def _listed_agents(env: gymnasium.Env[Any, Any], env_id: str) -> ListedAgents:
    """The environment with the user's wrappers, without Gymnasium's, which expect one agent."""
    inner: Any = env
    outermost: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner, TimeLimit):
            raise UsageError(
                f"{env_id}: max_episode_steps={inner._max_episode_steps} is for one agent. An environment that takes "
                "lists has to end its agents' episodes itself: register it without max_episode_steps. "
                f"{_HAS_NUM_AGENTS}"
            )
        if outermost is inner and isinstance(inner, (OrderEnforcing, PassiveEnvChecker)):
            outermost = inner.env
        inner = inner.env
    return ListedAgents(outermost, env_id, int(inner.num_agents))


def find_pettingzoo_maker(module: str, name: str) -> Callable[..., Any] | None:
    """The function that makes the environment `name` of a PettingZoo package, such as `mpe2` or `pettingzoo`.

    A package has a module for each environment, with the function `parallel_env` if its agents move at the same time,
    and `env` for the interface of turns.

    Raises:
        UsageError: a package that the environment needs is missing.
    """
    if not all(map(str.isidentifier, name.split("."))):
        return None
    names = [f"{module}.{name}"]
    if module == "pettingzoo":
        names += [f"{module}.{family}.{name}" for family in _FAMILIES]
    for full_name in names:
        found = _import_if_there(full_name)
        for function in ("parallel_env", "env"):
            if found is not None and callable(getattr(found, function, None)):
                make: Callable[..., Any] = getattr(found, function)
                return make
    return None


def _import_if_there(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name + ".").startswith(error.name + "."):
            return None
        package, _, rest = name.partition(".")
        extra = rest.partition(".")[0]
        wanted = f'"pettingzoo[{extra}]"' if package == "pettingzoo" else str(error.name)
        raise UsageError(f"{name} needs a package that is not installed ({error.name}): pip install {wanted}") from None


def _possible_agents(env: Any, env_id: str) -> list[str]:
    agents = getattr(env, "possible_agents", None)
    if not agents:
        raise UsageError(f"{env_id} has no possible_agents: the agents that may appear must be known beforehand.")
    return list(agents)


def _extra_stats(info: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """An agent's `episode_extra_stats`, and `is_success` if its info has it."""
    if info is None:
        return {}
    found = info.get("episode_extra_stats")
    numbers = found if isinstance(found, Mapping) else {}
    is_success = info.get("is_success")
    return numbers if is_success is None else {**numbers, "is_success": float(is_success)}
