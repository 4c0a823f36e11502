"""Environments of several agents as one form: PettingZoo's parallel and AEC environments, and lists of agents.

Every agent that an environment may have has a fixed place. What a reset or a step leads to is an `AgentsState`: for
each place the observation, the reward and the end of that agent's own episode, and whether it chooses the next action.
Environments in Sample Factory's style take and return lists and have `num_agents`; they reset by themselves.

What breaks an interface raises UsageError, in the check and at any later step: keys that are not agents, agents without
a value, values of a wrong type.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Integral
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest
from asyncrl.envs.results import (
    describe,
    extra_stats_problem,
    is_flag,
    is_number,
    reset_error_problem,
    values_problem,
)

_FAMILIES = ("classic", "butterfly", "sisl", "atari")
"""Packages of PettingZoo, in which an id without one is looked for."""
_VERSION = re.compile(r"_v\d+$")
_HAS_NUM_AGENTS = (
    "It counts as an environment of several agents because it has the attribute num_agents: rename it if there is one "
    "agent."
)


_MOST_SHOWN_AGENTS = 8
_MISSING = object()


@dataclass
class AgentsState:
    """What a reset or a step led to, for all N places of agents, in their order.

    Attributes:
        obs: next observation, or the final one of an agent whose episode ended; None where there is none: the agent is
            absent, or it is not to move and was not observed. The final one of a truncated episode is one at which the
            agent would move: None means that it waits, so what its last action leads to is not known.
        is_present: whether the agent's episode continues. An agent that was absent before begins one.
        moves: whether the agent chooses an action now. One that is present and does not move waits.
        reward: of the step.
        terminated, truncated: whether the step ended the agent's episode.
        is_over: whether the environment must be reset.
        extra_stats: the environment's own numbers of an episode that ended, for each agent, `is_success` among them.
        infos: what the environment returned as infos: a dict by agent, or a list.
    """

    obs: list[Any]
    is_present: list[bool]
    moves: list[bool]
    reward: list[float]
    terminated: list[bool]
    truncated: list[bool]
    is_over: bool
    extra_stats: list[Mapping[str, Any]]
    infos: Any = field(repr=False)


def _absent_agents(num_agents: int, infos: Any) -> AgentsState:
    return AgentsState(
        obs=[None] * num_agents,
        is_present=[False] * num_agents,
        moves=[False] * num_agents,
        reward=[0.0] * num_agents,
        terminated=[False] * num_agents,
        truncated=[False] * num_agents,
        is_over=True,
        extra_stats=[{}] * num_agents,
        infos=infos,
    )


class AgentsEnv(gymnasium.Env[AgentsState, Sequence[Any]]):
    """An environment of several agents as a `gymnasium.Env`, so that Gymnasium's wrappers can record it.

    Its spaces are those of the first agent. What it returns as the observation is the `AgentsState`; `terminated` says
    that the environment is over.

    Attributes:
        agents: names of the agents, in the order of their places.
        spaces: observation and action space of each agent.
        resets_itself: whether the observation after an episode's end is the first of the next episode.
        interface: package whose interface it has, for messages.
    """

    resets_itself = False
    interface = "PettingZoo"

    def __init__(self, agents: Sequence[str], env: Any, spaces: Sequence[tuple[Any, Any]], env_id: str) -> None:
        self.agents = tuple(agents)
        self.spaces = tuple(spaces)
        self.observation_space, self.action_space = self.spaces[0]
        self.env = env
        self.env_id = env_id
        self._known = frozenset(self.agents)
        self._was_present = [False] * len(self.agents)
        self.metadata = getattr(env, "metadata", {})
        self.render_mode = getattr(env, "render_mode", None)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentsState, dict[str, Any]]:
        """Starts an episode.

        Raises:
            UsageError: what the environment returned is not as its interface says.
        """
        self._was_present = [False] * len(self.agents)
        try:
            result = self.env.reset(seed=seed)
        except TypeError as error:
            if (problem := reset_error_problem(error, self.interface)) is None:
                raise
            raise UsageError(f"{self.env_id}: {problem}.") from error
        state = self._start(result)
        self._remember(state, "reset()")
        return state, {}

    def step(self, action: Sequence[Any]) -> tuple[AgentsState, float, bool, bool, dict[str, Any]]:
        """Takes a step with one action for each place; PettingZoo's environments get those of agents that move.

        Raises:
            UsageError: what the environment returned is not as its interface says, or an agent is gone although its
                episode has not ended.
        """
        state = self._advance(action)
        for place, agent in enumerate(self.agents):
            is_gone = self._was_present[place] and (state.is_over or not state.is_present[place])
            if is_gone and not (state.terminated[place] or state.truncated[place]):
                raise UsageError(
                    f"{agent} is no longer among the agents after step(), but it is neither terminated nor truncated."
                )
        self._remember(state, "step()")
        return state, sum(state.reward), state.is_over, False, {}

    @abstractmethod
    def _start(self, result: Any) -> AgentsState:
        """The state after a reset that returned `result`."""

    @abstractmethod
    def _advance(self, actions: Sequence[Any]) -> AgentsState: ...

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _remember(self, state: AgentsState, call: str) -> None:
        for place, moves in enumerate(state.moves):
            if moves and state.obs[place] is None:
                raise UsageError(
                    f"{self.env_id}: {self.agents[place]} is to move after {call}, but its observation is None."
                )
        self._was_present = state.is_present

    def _attribute(self, name: str, call: str) -> Any:
        """What PettingZoo's environments tell in an attribute."""
        found = getattr(self.env, name, _MISSING)
        if found is _MISSING:
            text = f"{self.env_id} has no attribute {name} after {call}, which PettingZoo expects"
            older = name in ("terminations", "truncations") and hasattr(self.env, "dones")
            raise UsageError(f"{text}; dones is of an older interface." if older else f"{text}.")
        return found

    def _check_agents(self, name: str, found: Any, call: str, needed: Iterable[Any] = ()) -> None:
        """Raises UsageError unless all of `found` are agents and the needed ones are among them.

        Args:
            name: what is found, for the message.
            found: dict by agent; a list for the name "agents".
            call: "reset()" or "step()", after which it is found.
            needed: agents that must be in it.
        """
        expected_type: Any = Mapping if name != "agents" else (Sequence, Set)
        if type(found) is not dict and (not isinstance(found, expected_type) or isinstance(found, str)):
            expected = "a list" if name == "agents" else "a dict by agent"
            raise UsageError(f"{self.env_id}: the {name} after {call} are {found!r:.80}, but {expected} is expected.")
        if not self._known.issuperset(found):
            unknown = next(each for each in found if each not in self._known)
            shown = ", ".join(map(repr, self.agents[:_MOST_SHOWN_AGENTS]))
            raise UsageError(
                f"{self.env_id}: the {name} after {call} contain {unknown!r}, which is not one of possible_agents: "
                f"{shown}{', ...' if len(self.agents) > _MOST_SHOWN_AGENTS else ''}."
            )
        for agent in needed:
            if agent not in found:
                raise UsageError(
                    f"{self.env_id}: the {name} after {call} lack {agent!r}, but a value for each agent of the step is "
                    "expected."
                )

    def _reward(self, agent: Any, value: Any) -> float:
        if (
            type(value) is float
            or isinstance(value, (float, int, np.number))
            or (is_number(value) and np.ndim(value) == 0)
        ):
            return float(value)
        raise UsageError(f"{self.env_id}: the reward of {agent} is {value!r:.80}, but a number is expected.")

    def _flag(self, name: str, agent: Any, value: Any) -> bool:
        if value is True or value is False or is_flag(value):
            return bool(value)
        raise UsageError(f"{self.env_id}: {name} of {agent} is {value!r:.80}, but True or False is expected.")

    def _extra_stats(self, agent: Any, info: Any) -> Mapping[str, Any]:
        """An agent's `episode_extra_stats`, and `is_success` if its info has it."""
        if not info:
            return {}
        if (problem := extra_stats_problem(info)) is not None:
            raise UsageError(f"{self.env_id}: {agent}: {problem}.")
        numbers, is_success = info.get("episode_extra_stats") or {}, info.get("is_success")
        return numbers if is_success is None else {**numbers, "is_success": float(is_success)}

    def _check_infos(self, infos: Iterable[tuple[Any, Any]]) -> None:
        for agent, info in infos:
            if type(info) is not dict and not isinstance(info, (Mapping, type(None))):
                raise UsageError(f"{self.env_id}: the info of {agent} is {info!r:.80}, but a dict is expected.")


class ParallelAgents(AgentsEnv):
    """A parallel environment of PettingZoo: all of its agents move at the same time. One without an observation waits.

    Infos of agents may be missing. Values of agents that are absent are not read.
    """

    def __init__(self, env: Any, env_id: str) -> None:
        agents = _possible_agents(env, env_id)
        super().__init__(agents, env, _spaces(env, env_id, agents), env_id)
        self._waiting: set[Any] = set()

    def _start(self, result: Any) -> AgentsState:
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"{self.env_id}: reset() returned {describe(result)}; PettingZoo expects two dicts by agent, "
                "observations and infos."
            )
        obs, infos = result
        return self._state("reset()", obs, {}, {}, {}, infos)

    def _advance(self, actions: Sequence[Any]) -> AgentsState:
        live = set(self.env.agents) - self._waiting
        chosen = {agent: action for agent, action in zip(self.agents, actions, strict=True) if agent in live}
        result = self.env.step(chosen)
        if (problem := values_problem(result, self.interface)) is not None:
            raise UsageError(f"{self.env_id}: {problem}.")
        return self._state("step()", *result)

    def _state(self, call: str, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: Any) -> AgentsState:
        agents = self.agents
        live = self._attribute("agents", call)
        stepped = [agent for agent, was in zip(agents, self._was_present, strict=True) if was]
        self._check_agents("agents", live, call)
        self._check_agents("observations", obs, call)
        self._check_agents("rewards", reward, call, stepped)
        self._check_agents("terminations", terminated, call, stepped)
        self._check_agents("truncations", truncated, call, stepped)
        self._check_agents("infos", infos, call)
        self._check_infos(infos.items())
        state = _absent_agents(len(agents), infos)
        self._waiting.clear()
        for place, agent in enumerate(agents):
            state.obs[place] = own = obs.get(agent)
            if self._was_present[place]:
                state.reward[place] = self._reward(agent, reward[agent])
            state.terminated[place] = has_terminated = self._flag("terminated", agent, terminated.get(agent, False))
            has_truncated = self._flag("truncated", agent, truncated.get(agent, False)) and not has_terminated
            state.truncated[place] = has_truncated
            if has_terminated or has_truncated:  # some environments still list agents whose episodes have ended
                state.extra_stats[place] = self._extra_stats(agent, infos.get(agent))
            elif agent in live:
                state.is_present[place], state.is_over = True, False
                state.moves[place] = own is not None
                if own is None:
                    self._waiting.add(agent)
        return state


class TurnAgents(AgentsEnv):
    """An AEC environment of PettingZoo: one agent after the other moves, the others wait."""

    def __init__(self, env: Any, env_id: str) -> None:
        agents = _possible_agents(env, env_id)
        super().__init__(agents, env, _spaces(env, env_id, agents), env_id)
        if not callable(getattr(env, "observe", None)):
            raise UsageError(f"{env_id} has no method observe(agent), which PettingZoo expects.")
        self._place = {agent: place for place, agent in enumerate(self.agents)}

    def _start(self, result: Any) -> AgentsState:
        return self._state("reset()", None)

    def _advance(self, actions: Sequence[Any]) -> AgentsState:
        mover = self.env.agent_selection
        self.env.step(actions[self._place[mover]])
        return self._state("step()", mover)

    def _state(self, call: str, mover: Any) -> AgentsState:
        env = self.env
        live = list(self._attribute("agents", call))
        rewards, terminations, truncations, infos = (
            self._attribute(name, call) for name in ("rewards", "terminations", "truncations", "infos")
        )
        self._check_agents("agents", live, call)
        self._check_agents("terminations", terminations, call, live)
        self._check_agents("truncations", truncations, call, live)
        # Some environments remove all agents in the step that ends their episodes.
        gone = [agent for agent, was in zip(self.agents, self._was_present, strict=True) if was and agent not in live]
        ended_and_gone = [agent for agent in gone if terminations.get(agent) or truncations.get(agent)]
        self._check_agents("rewards", rewards, call, [*live, *ended_and_gone])
        self._check_agents("infos", infos, call)
        self._check_infos(infos.items())
        state = _absent_agents(len(self.agents), infos)
        for agent in (*live, *ended_and_gone):
            place = self._place[agent]
            state.reward[place] = self._reward(agent, rewards[agent])
            has_terminated = self._flag("terminated", agent, terminations.get(agent, False))
            has_truncated = self._flag("truncated", agent, truncations.get(agent, False)) and not has_terminated
            state.terminated[place], state.truncated[place] = has_terminated, has_truncated
            state.is_present[place] = agent in live and not (has_terminated or has_truncated)
            if has_terminated or has_truncated:
                state.extra_stats[place] = self._extra_stats(agent, infos.get(agent))
        if any(state.truncated) and (agent := self._next_to_move(state, mover)) is not None:
            state.obs[self._place[agent]] = env.observe(agent)
        # PettingZoo wants a last step without an action from each agent whose episode has ended.
        num_left = 2 * len(self.agents)
        while env.agents and not state.is_present[self._selected(call)] and num_left > 0:
            env.step(None)
            num_left -= 1
        if not any(state.is_present):
            return state
        state.is_over = False
        if not env.agents or num_left == 0:
            raise UsageError(
                f"{self.env_id}: after {call} and steps without an action for the agents whose episodes have ended, no "
                "agent is selected whose episode continues."
            )
        place = self._selected(call)
        state.moves[place] = True
        state.obs[place] = env.observe(env.agent_selection)
        return state

    def _selected(self, call: str) -> int:
        """The place of the agent that the environment has selected."""
        selected = self._attribute("agent_selection", call)
        if selected not in self.env.agents:
            raise UsageError(
                f"{self.env_id}: agent_selection after {call} is {selected!r}, which is not one of the agents "
                f"{list(self.env.agents)}."
            )
        return self._place[selected]

    def _next_to_move(self, state: AgentsState, mover: Any) -> Any:
        """The agent that would move next if its episode had not been truncated now; None if this is not known.

        Some environments leave the last mover selected when the game is over. PettingZoo's `_deads_step_first` selects
        the first agent whose episode has ended, and keeps the one whose turn it would be.
        """
        selected = self.env.agent_selection
        if (place := self._place.get(selected)) is not None and not state.is_present[place]:
            kept = getattr(getattr(self.env, "unwrapped", self.env), "_skip_agent_selection", None)
            selected = selected if kept is None else kept
        place = self._place.get(selected)
        is_known = place is not None and state.truncated[place] and (selected != mover or len(self.agents) == 1)
        return selected if is_known else None


class ListedAgents(AgentsEnv):
    """An environment in Sample Factory's style: lists of `num_agents` values, and `is_active` in the infos."""

    resets_itself = True
    interface = "Gymnasium"

    def __init__(self, env: Any, env_id: str, num_agents: int) -> None:
        spaces = [(env.observation_space, env.action_space)] * num_agents
        super().__init__([f"agent_{place}" for place in range(num_agents)], env, spaces, env_id)

    def _start(self, result: Any) -> AgentsState:
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

    def _state(self, obs: Any, reward: Any, terminated: Any, truncated: Any, infos: Any) -> AgentsState:
        for name, values in (
            ("observations", obs),
            ("rewards", reward),
            ("terminated", terminated),
            ("truncated", truncated),
            ("infos", infos),
        ):
            if (length := _length(values)) != len(self.agents) or isinstance(values, (Mapping, Set, str)):
                is_one = length in (None, len(self.agents))
                found = f"one {type(values).__name__} as {name}" if is_one else f"{length} {name}"
                text = f"{self.env_id} returned {found}, but its num_agents is {len(self.agents)}"
                raise UsageError(f"{text}. {_HAS_NUM_AGENTS}")
        self._check_infos(zip(self.agents, infos, strict=True))
        infos = [info or {} for info in infos]
        has_terminated = [self._flag("terminated", *each) for each in zip(self.agents, terminated, strict=True)]
        has_truncated = [self._flag("truncated", *each) for each in zip(self.agents, truncated, strict=True)]
        return AgentsState(
            obs=list(obs),
            is_present=[True] * len(self.agents),
            moves=[
                self._flag('info["is_active"]', agent, info.get("is_active", True))
                for agent, info in zip(self.agents, infos, strict=True)
            ],
            reward=[self._reward(*each) for each in zip(self.agents, reward, strict=True)],
            terminated=has_terminated,
            truncated=[cut and not ended for cut, ended in zip(has_truncated, has_terminated, strict=True)],
            is_over=False,
            extra_stats=[
                self._extra_stats(agent, info) if terminates or cut else {}
                for agent, info, terminates, cut in zip(self.agents, infos, has_terminated, has_truncated, strict=True)
            ],
            infos=infos,
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
    if _is_a(getattr(env, "unwrapped", env), "MultiAgentEnv"):
        raise UsageError(
            f"{env_id} is a MultiAgentEnv of RLlib, which is not supported: give it PettingZoo's parallel interface, "
            "with possible_agents, agents, and the methods observation_space(agent) and action_space(agent), and "
            'without the key "__all__".'
        )
    if isinstance(env, gymnasium.Env):
        num_agents = getattr(env.unwrapped, "num_agents", 1)
        return _listed_agents(env, env_id) if isinstance(num_agents, Integral) and int(num_agents) > 1 else None
    if hasattr(env, "agent_selection") or hasattr(env, "agent_iter"):
        return TurnAgents(env, env_id)
    is_parallel = hasattr(env, "possible_agents") or hasattr(env, "agents") or _is_a(env, "ParallelEnv")
    return ParallelAgents(env, env_id) if is_parallel else None


def _is_a(env: Any, name: str) -> bool:
    """Whether a class of `env` has this name; its package need not be installed."""
    return any(own.__name__ == name for own in type(env).__mro__)


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


def nearest_pettingzoo_name(module: str, name: str) -> str | None:
    """The most similar name in a package of PettingZoo, compared without versions; None if nothing is similar."""
    packages = [module, *(f"{module}.{family}" for family in _FAMILIES if module == "pettingzoo")]
    known: list[str] = []
    for package in packages:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(package)
            places = None if spec is None else spec.submodule_search_locations
            known += [found.name for found in pkgutil.iter_modules(places or ()) if _VERSION.search(found.name)]
    by_base = {_VERSION.sub("", each): each for each in known}
    near = nearest(_VERSION.sub("", name), by_base)
    return None if near is None else by_base[near]


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


def _possible_agents(env: Any, env_id: str) -> list[Any]:
    agents = getattr(env, "possible_agents", None)
    if agents is None or isinstance(agents, str) or not _length(agents):
        found = "has no possible_agents" if not agents else f"has possible_agents {agents!r:.80}, which is not a list"
        raise UsageError(
            f"{env_id} {found}: the agents that may appear must be known beforehand, as a list that is set in "
            "`__init__`."
        )
    if len(set(agents)) < len(agents):
        raise UsageError(f"{env_id} names an agent twice in possible_agents: {list(agents)!r:.200}.")
    return list(agents)


def _spaces(env: Any, env_id: str, agents: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The observation and the action space of each agent, from the methods of PettingZoo's interface."""
    for name in ("observation_space", "action_space"):
        method = getattr(env, name, None)
        if not callable(method):
            found = f"has no method {name}(agent)"
            if method is not None:
                found = f"has {name} as one {type(method).__name__}, not as a method {name}(agent)"
            hint = f", which may return self.{name}s[agent]" if hasattr(env, f"{name}s") else ""
            raise UsageError(f"{env_id} {found}: PettingZoo expects a method that returns the space of an agent{hint}.")
    try:
        return [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
    except KeyError as error:
        raise UsageError(
            f"{env_id}: observation_space or action_space raised KeyError {error}: each of possible_agents needs both "
            "spaces."
        ) from error
