"""Environments of several agents that break their interface; made as `wrong_agent_envs:NAME`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from agent_envs import BIT, Listed, OwnBits, TakeTurns
from gymnasium.spaces import Discrete

FIELDS = ("observations", "rewards", "terminations", "truncations", "infos")


def spoiled(values: Any, how: str) -> Any:
    """A dict by agent, or a list of agents' values, that is wrong in this way."""
    if isinstance(values, list):
        by_place = dict(enumerate(values))
        return {"dict": by_place, "value_none": [None, *values[1:]], "value_array": [np.zeros(2), *values[1:]]}[how]
    second = list(values)[1] if len(values) > 1 else None
    return {
        "renamed": lambda: {f"player_{agent}": value for agent, value in values.items()},
        "stranger": lambda: {**values, "__all__": False},
        "missing": lambda: {agent: value for agent, value in values.items() if agent != second},
        "none": lambda: None,
        "value_none": lambda: {**values, second: None},
        "value_array": lambda: {**values, second: np.zeros(2)},
    }[how]()


class WrongParallel(OwnBits):
    """`OwnBits` of which one result is wrong from step number `since` on, and in reset if that is 0."""

    def __init__(self, field: str, how: str, since: int = 0) -> None:
        super().__init__()
        self._field, self._how, self._since, self._steps = FIELDS.index(field), how, since, 0

    def _spoil(self, results: list[Any]) -> tuple[Any, ...]:
        if self._steps >= self._since:
            results[self._field] = spoiled(results[self._field], self._how)
        return tuple(results)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed)
        results = self._spoil([obs, {}, {}, {}, {agent: {} for agent in obs} or infos])
        return results[0], results[4]

    def step(self, actions: dict[str, int]) -> Any:
        self._steps += 1
        return self._spoil(list(super().step(actions)))


class WrongTurns(TakeTurns):
    """`TakeTurns` of which one attribute is wrong from step number `since` on, or what it observes."""

    def __init__(self, field: str, how: str, since: int = 0) -> None:
        super().__init__()
        self._field, self._how, self._since, self._steps = field, how, since, 0

    def _spoil(self) -> None:
        if self._steps >= self._since and self._field != "observations":
            setattr(self, self._field, spoiled(getattr(self, self._field), self._how))

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self._spoil()

    def observe(self, agent: str) -> Any:
        is_wrong = self._field == "observations" and self._steps >= self._since
        return None if is_wrong else super().observe(agent)

    def step(self, action: int | None) -> None:
        self._steps += 1
        super().step(action)
        self._spoil()


class WrongLists(Listed):
    """`Listed` of which one list is wrong from step number `since` on."""

    def __init__(self, field: str, how: str, since: int = 0) -> None:
        super().__init__()
        self._field, self._how, self._since, self._steps = FIELDS.index(field), how, since, 0

    def step(self, actions: list[int]) -> Any:
        self._steps += 1
        results: list[Any] = list(super().step(actions))
        if self._steps >= self._since:
            results[self._field] = spoiled(results[self._field], self._how)
        return tuple(results)


wrong_parallel, wrong_turns, wrong_lists = WrongParallel, WrongTurns, WrongLists


class AgentsOfOthers(OwnBits):
    """`agents` names one that is not among possible_agents."""

    def step(self, actions: dict[str, int]) -> Any:
        result = super().step(actions)
        self.agents = [*self.agents, "latecomer"]
        return result


class SelectsNobody(TakeTurns):
    """After three moves, `agent_selection` is an agent that is not there."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if self.num_moves == 3:
            self.agent_selection = "third"


class NeverLeave(TakeTurns):
    """Steps without an action leave agents whose episodes have ended where they are."""

    def step(self, action: int | None) -> None:
        if action is not None:
            super().step(action)


class _Static:
    """One step of two agents, without a result of `step` and `reset` that anything may be read from."""

    possible_agents = ["a", "b"]
    metadata: dict[str, Any] = {}

    def __init__(self) -> None:
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.possible_agents, BIT)
        self.action_spaces = dict.fromkeys(self.possible_agents, Discrete(2))

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return BIT

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return Discrete(2)

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return self._all(BIT.low), self._all({})

    def step(self, actions: Any) -> Any:
        return self._all(BIT.low), self._all(0.0), self._all(False), self._all(False), self._all({})

    def close(self) -> None:
        pass


class ResetWithoutInfos(_Static):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset()[0]


class ResetWithoutSeed(_Static):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class FourValues(_Static):
    def step(self, actions: Any) -> Any:
        obs, rewards, dones, _, infos = super().step(actions)
        return obs, rewards, dones, infos


class SpacesInDicts(_Static):
    observation_space = action_space = None  # type: ignore[assignment]


class SpacesAsDicts(_Static):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self.observation_spaces  # type: ignore[assignment]
        self.action_space = self.action_spaces  # type: ignore[assignment]


class SpaceOfOneAgent(_Static):
    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return {"a": BIT}[agent]


class NoneRewards(_Static):
    def step(self, actions: Any) -> Any:
        obs, _, *rest = super().step(actions)
        return obs, self._all(None), *rest


class ArrayRewards(_Static):
    def step(self, actions: Any) -> Any:
        obs, _, *rest = super().step(actions)
        return obs, self._all(np.zeros(1)), *rest


class NoAgents(_Static):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset()
        del self.agents
        return result


class ParallelEnv:
    """As PettingZoo's class: `agents` and `possible_agents` are declared and have no value."""

    agents: list[str]
    possible_agents: list[str]


class OnlyDeclared(ParallelEnv):
    """Sets its agents in `reset`."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = self.possible_agents = ["a"]
        return {"a": BIT.low}, {}


class TwiceTheSame(_Static):
    possible_agents = ["a", "a"]


class OldTurns(TakeTurns):
    """As PettingZoo before 1.22: `dones` instead of terminations and truncations."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed)
        self.dones = self.terminations
        del self.terminations, self.truncations


class TurnsWithoutSeed(TakeTurns):
    def reset(self) -> None:  # type: ignore[override]
        super().reset(0)


class TurnsWithoutObserve(TakeTurns):
    observe = None  # type: ignore[assignment]


class MultiAgentEnv(gymnasium.Env[Any, Any]):
    """As RLlib's class: a `gymnasium.Env` with agents."""

    def __init__(self) -> None:
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, BIT)
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))

    @property
    def num_agents(self) -> int:
        return len(self.agents)


class OfRllib(MultiAgentEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return dict.fromkeys(self.agents, BIT.low), {}

    def step(self, action: Any) -> Any:
        never = {"a": False, "b": False, "__all__": False}
        return dict.fromkeys(self.agents, BIT.low), dict.fromkeys(self.agents, 0.0), never, never, {}


class OfRllibBeforeItsReset(OfRllib):
    """Its agents are known after reset only."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = []


class OfRllibWithSpaces(OfRllib):
    """Its spaces are Dicts of the agents' spaces, as in RLlib before 2.40."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Dict(self.observation_spaces)
        self.action_space = gymnasium.spaces.Dict(self.action_spaces)


def wrapped_of_rllib() -> gymnasium.Env[Any, Any]:
    return gymnasium.Wrapper(OfRllibWithSpaces())
