"""Games of several agents whose right play is known; made as `agent_envs:name`. They need no package of PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

BIT = Box(-1.0, 1.0, (1,), np.float32)


class _Game:
    """Spaces of one bit, which a choice of two should name, and the two methods of PettingZoo that return them."""

    metadata: dict[str, Any] = {"name": "game"}
    possible_agents: list[str]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return BIT

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return Discrete(2)

    def _draw(self) -> np.ndarray:
        return self.random.choice([-1.0, 1.0], 1).astype(np.float32)

    def close(self) -> None:
        pass


class OwnBits(_Game):
    """Three agents at once: each is paid for naming its own bit, and the first one twice as much.

    An episode is truncated after five steps.
    """

    def __init__(self, num_agents: int = 3) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(num_agents)]
        self.agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.num_steps = list(self.possible_agents), 0
        return self._show(), {}

    def _show(self) -> dict[str, Any]:
        self.bits = {agent: self._draw() for agent in self.agents}
        return self.bits

    def _is_right(self, agent: str, action: int) -> bool:
        return bool((action == 1) == (self.bits[agent][0] > 0))

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        reward = {agent: float(self._is_right(agent, actions[agent])) for agent in self.agents}
        if "agent_0" in reward:
            reward["agent_0"] *= 2.0
        self.num_steps += 1
        agents, is_over = self.agents, self.num_steps == 5
        obs = self._show()
        if is_over:
            self.agents = []
        return (
            obs,
            reward,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            {agent: {} for agent in agents},
        )


class Shaped(OwnBits):
    """Pays each agent its bonus in every step instead, whatever it does. Its true objective is that of its policy."""

    def __init__(self, num_agents: int = 1) -> None:
        super().__init__(num_agents)
        self.bonus = [1.0] * num_agents

    def get_default_reward_shaping(self) -> dict[str, float]:
        return {"bonus": 1.0}

    def set_reward_shaping(self, shaping: dict[str, float], agent: int) -> None:
        self.bonus[agent] = shaping["bonus"]

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        agents = self.agents
        obs, _, terminated, truncated, infos = super().step(actions)
        bonus = dict(zip(self.possible_agents, self.bonus, strict=True))
        for agent in agents:
            infos[agent] = {"episode_extra_stats": {"true_objective": 1.0}}
        return obs, {agent: bonus[agent] for agent in agents}, terminated, truncated, infos


class TakeTurns(_Game):
    """Two players in turn name their bits; a player learns its reward only when the other one moves.

    So the last of six moves, with which the game terminates, is paid to nobody. A player that waits is shown a 0.
    """

    possible_agents = ["first", "second"]
    agent_selection = "first"

    def __init__(self) -> None:
        self.agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.num_moves, self.owed, self.agent_selection = 0, 0.0, "first"
        self.bit = self._draw()

    def observe(self, agent: str) -> np.ndarray:
        return self.bit if agent == self.agent_selection else np.zeros(1, np.float32)

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        if self.terminations[mover]:
            assert action is None
            self.agents.remove(mover)
            self.agent_selection = self.agents[0] if self.agents else mover
            return
        other = "second" if mover == "first" else "first"
        self.rewards = {mover: 0.0, other: self.owed}
        self.owed = float((action == 1) == (self.bit[0] > 0))
        self.num_moves += 1
        self.bit, self.agent_selection = self._draw(), other
        if self.num_moves == 6:
            self.terminations = dict.fromkeys(self.possible_agents, True)


class Opposed(OwnBits):
    """Two agents: the first is paid for naming its bit, the second for naming the other one."""

    def __init__(self) -> None:
        super().__init__(2)

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        obs, reward, *rest = super().step(actions)
        return obs, {"agent_0": reward["agent_0"] / 2.0, "agent_1": 1.0 - reward["agent_1"]}, *rest


class Duel(OwnBits):
    """Two agents with equal pay: the one that names its bit more often in five steps wins."""

    def __init__(self) -> None:
        super().__init__(2)

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        obs, reward, *rest = super().step(actions)
        return obs, {**reward, "agent_0": reward["agent_0"] / 2.0}, *rest


class ComeAndGo(OwnBits):
    """`agent_1` appears after two steps and terminates after two of its own; all others are truncated after five."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed)
        self.agents.remove("agent_1")
        return self._show(), {}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        *results, terminated, truncated, infos = super().step(actions)
        if self.num_steps == 2:
            self.agents.insert(1, "agent_1")
            results[0] = self._show()
        if self.num_steps == 4:
            terminated["agent_1"] = True
            self.agents.remove("agent_1")
        return (*results, terminated, truncated, infos)


class Listed(gymnasium.Env[Any, Any]):
    """Two agents in lists, as in Sample Factory. The second one moves in every other step. Resets itself after six."""

    num_agents = 2
    is_multiagent = True
    observation_space, action_space = BIT, Discrete(2)

    def __init__(self, ends_by_truncation: bool = False) -> None:
        self._ends_by_truncation = ends_by_truncation

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[list[Any], list[Any]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self._num_steps = 0
        return self._show()

    def _show(self) -> tuple[list[Any], list[Any]]:
        self._bits = [self.random.choice([-1.0, 1.0], 1).astype(np.float32) for _ in range(2)]
        return self._bits, [{"is_active": True}, {"is_active": self._num_steps % 2 == 0}]

    def step(self, actions: list[int]) -> tuple[list[Any], ...]:
        reward = [float((int(action) == 1) == (bit[0] > 0)) for action, bit in zip(actions, self._bits, strict=True)]
        if self._num_steps % 2 == 1:
            reward[1] = 0.0
        self._num_steps += 1
        is_over = self._num_steps == 6
        if is_over:
            self._num_steps = 0
        obs, infos = self._show()
        ends, never = [is_over] * 2, [False] * 2
        return (obs, reward, *((never, ends) if self._ends_by_truncation else (ends, never)), infos)


class Masked(TakeTurns):
    """`TakeTurns` whose player may only name its bit; a mask of a player that waits forbids everything."""

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return Dict({"observation": BIT, "action_mask": MultiBinary(2)})

    def observe(self, agent: str) -> Any:
        bit = super().observe(agent)
        mask = np.array([bit[0] < 0, bit[0] > 0], np.int8)
        return {"observation": bit, "action_mask": mask}

    def step(self, action: int | None) -> None:
        if action is not None:
            assert (action == 1) == (self.bit[0] > 0), "a forbidden action"
        super().step(action)


WAITING = 3
"""What an agent of the games below observes while it waits; others observe their number."""


class PaidTurns(_Game):
    """Three players in turn, truncated after seven moves; a move pays the agents by its column of `pay`.

    An agent that is to move observes its number. From one of its moves to the next it gets the sum of its row of `pay`,
    so with a discount g between its moves its value is that sum divided by 1 - g.

    Args:
        last_selected: what `agent_selection` is after the last move: the agent whose turn it would be ("next"), the one
            that has moved ("mover"), or the first agent, as PettingZoo's `_deads_step_first` does it ("first").
    """

    possible_agents = ["agent_0", "agent_1", "agent_2"]
    pay = np.array([[0.25, 0.5, 0.75], [-1.0, 2.0, 4.0], [3.0, -2.0, 1.5]])
    num_moves_allowed = 7
    agent_selection = "agent_0"

    def __init__(self, last_selected: str = "next") -> None:
        self.agents: list[str] = []
        self._last_selected = last_selected

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return Discrete(WAITING + 1)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.turn, self.num_moves = list(self.possible_agents), 0, 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection, self._skip_agent_selection = "agent_0", None

    def observe(self, agent: str) -> int:
        place = self.possible_agents.index(agent)
        return place if place == self.turn else WAITING

    def step(self, action: int | None) -> None:
        if self.truncations[self.agent_selection]:
            assert action is None
            self.agents.remove(self.agent_selection)
            self.agent_selection = self.agents[0] if self.agents else self.agent_selection
            return
        self.rewards = dict(zip(self.possible_agents, self.pay[:, self.turn].tolist(), strict=True))
        self.num_moves, mover, self.turn = self.num_moves + 1, self.turn, (self.turn + 1) % 3
        self.agent_selection = self.possible_agents[self.turn]
        if self.num_moves == self.num_moves_allowed:
            self.truncations = dict.fromkeys(self.possible_agents, True)
            if self._last_selected == "mover":
                self.agent_selection = self.possible_agents[mover]
            elif self._last_selected == "first":
                self._skip_agent_selection, self.agent_selection = self.agent_selection, "agent_0"


class PaidTurnsAtOnce(_Game):
    """`PaidTurns` in the parallel interface: an agent that waits has no observation."""

    possible_agents = PaidTurns.possible_agents
    observation_space, observe = PaidTurns.observation_space, PaidTurns.observe

    def __init__(self) -> None:
        self.agents: list[str] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.turn, self.num_moves = list(self.possible_agents), 0, 0
        return self._show(), {}

    def _show(self) -> dict[str, Any]:
        mover = self.possible_agents[self.turn]
        return {mover: self.observe(mover)}

    def step(self, actions: dict[str, int]) -> Any:
        assert list(actions) == [self.possible_agents[self.turn]], "only the agent that was observed acts"
        rewards = dict(zip(self.possible_agents, PaidTurns.pay[:, self.turn].tolist(), strict=True))
        self.num_moves, self.turn = self.num_moves + 1, (self.turn + 1) % 3
        is_over = self.num_moves == PaidTurns.num_moves_allowed
        never, ends = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, is_over)
        self.agents = [] if is_over else self.agents
        return self._show(), rewards, never, ends, {}


class PaidTurnsInLists(gymnasium.Env[Any, Any]):
    """`PaidTurns` in lists, which resets itself."""

    num_agents = 3
    observation_space, action_space = Discrete(WAITING + 1), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.turn = self.num_moves = 0
        return self._show()

    def _show(self) -> tuple[list[Any], list[Any]]:
        obs = [place if place == self.turn else WAITING for place in range(3)]
        return obs, [{"is_active": place == self.turn} for place in range(3)]

    def step(self, actions: Any) -> Any:
        rewards = PaidTurns.pay[:, self.turn].tolist()
        self.num_moves, self.turn = self.num_moves + 1, (self.turn + 1) % 3
        is_over = self.num_moves == PaidTurns.num_moves_allowed
        if is_over:
            self.turn = self.num_moves = 0
        obs, infos = self._show()
        return obs, rewards, [False] * 3, [is_over] * 3, infos


class Unlike(OwnBits):
    """Agents with different spaces, each paid for naming its own bit.

    `wide` sees its bit as the last of three numbers, and names it by the first or the last of four choices.
    """

    wide_spaces: tuple[Any, Any] = Box(-1.0, 1.0, (3,), np.float32), Discrete(4)

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["narrow_0", "wide", "narrow_1"]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.wide_spaces[0] if agent == "wide" else BIT

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.wide_spaces[1] if agent == "wide" else Discrete(2)

    def _show(self) -> dict[str, Any]:
        super()._show()
        shown = {agent: [0.5, -0.5, *bit] if agent == "wide" else bit for agent, bit in self.bits.items()}
        return {agent: np.array(numbers, np.float32) for agent, numbers in shown.items()}

    def _is_right(self, agent: str, action: int) -> bool:
        assert self.action_space(agent).contains(action)
        return action == ((3 if agent == "wide" else 1) if self.bits[agent][0] > 0 else 0)


class MixedActions(Unlike):
    """One kind of agents chooses, the other gives numbers."""

    wide_spaces = Unlike.wide_spaces[0], Box(-1.0, 1.0, (2,), np.float32)


class MixedObservations(Unlike):
    """One kind of agents observes an image, the other does not."""

    wide_spaces = Box(0, 255, (16, 16, 3), np.uint8), Discrete(4)


shaped, opposed, duel, mixed_actions, mixed_observations = Shaped, Opposed, Duel, MixedActions, MixedObservations
paid_turns, paid_turns_at_once, paid_turns_in_lists = PaidTurns, PaidTurnsAtOnce, PaidTurnsInLists
own_bits, take_turns, come_and_go, listed, masked, unlike = OwnBits, TakeTurns, ComeAndGo, Listed, Masked, Unlike


def sometimes_of_other_spaces(agent: str, env_idx: int, episode: int) -> int:
    """A policy mapping for `Unlike` and four policies that is wrong from the third episode on."""
    return (2 if agent == "wide" else 0) + episode


def seldom_the_second(agent: str, env_idx: int, episode: int) -> int:
    """A policy mapping that chooses policy 1 in one of a hundred episodes."""
    return int((7 * env_idx + episode) % 100 == 50)
