"""Matches: a policy as one agent of an environment, and an opponent as all the others.

If agents have different spaces, the policy plays all agents of its spaces, and the opponent the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.actions import ActionAdapter, can_squash
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import MakeEnv, Player, evaluate
from asyncrl.evaluation.team import Team
from asyncrl.inference.policy import Policy
from asyncrl.models.distributions import make_distribution
from asyncrl.models.uniform import UniformPolicy

_Z_975 = 1.959964


class RandomPlayer:
    """Draws its actions uniformly from those that are allowed."""

    def __init__(self, spec: EnvSpec, config: TrainConfig, seed: int) -> None:
        """Plays agents with the spaces of `spec`, in the environment of a run with these settings."""
        # Numbers are drawn before tanh, which makes them uniform within finite bounds.
        is_bounded = can_squash(spec.action)
        distribution = make_distribution(spec.action, is_bounded or config.squashes)
        self._uniform = UniformPolicy(distribution, seed, spec.observation)
        self._adapter = ActionAdapter(spec, "squashed" if is_bounded else config.action_mapping)

    def initial_state(self, num_envs: int) -> npt.NDArray[np.float32]:
        return np.zeros((num_envs, 0), np.float32)

    def step(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], deterministic: bool
    ) -> tuple[Any, npt.NDArray[np.float32]]:
        return self._adapter.to_env_batch(self._uniform.act(rows).action), state


@dataclass(frozen=True)
class MatchResult:
    """Episodes of a policy as one agent against one opponent.

    Attributes:
        opponent: its name.
        agent: the agent that the policy played, or the agents; the opponent played all others.
        returns: the policy's return in each episode, the mean over its agents.
        best_of_others: the largest return of any other agent in each episode.
    """

    opponent: str
    agent: str
    returns: tuple[float, ...]
    best_of_others: tuple[float, ...]

    @property
    def won(self) -> int:
        """Episodes in which the policy's return was above that of every other agent."""
        return sum(own > other for own, other in zip(self.returns, self.best_of_others, strict=True))

    @property
    def drawn(self) -> int:
        return sum(own == other for own, other in zip(self.returns, self.best_of_others, strict=True))

    @property
    def lost(self) -> int:
        return len(self.returns) - self.won - self.drawn

    @property
    def won_ci95(self) -> tuple[float, float]:
        """95 % interval of the share of episodes that are won (Wilson 1927)."""
        count, share = len(self.returns), self.won / len(self.returns)
        spread = _Z_975 * math.sqrt(share * (1 - share) / count + _Z_975**2 / (4 * count**2))
        middle, scale = share + _Z_975**2 / (2 * count), 1 + _Z_975**2 / count
        return (middle - spread) / scale, (middle + spread) / scale

    @property
    def mean_return(self) -> float:
        return statistics.fmean(self.returns)

    def to_data(self) -> dict[str, Any]:
        """JSON values of the result."""
        counts = {"episodes": len(self.returns), "won": self.won, "drawn": self.drawn, "lost": self.lost}
        match = {"opponent": self.opponent, "agent": self.agent, **counts}
        return {**match, "won_ci95": self.won_ci95, "mean_reward": self.mean_return}


def seats_of(spec: EnvSpec) -> list[list[int]]:
    """The agents that a policy plays in turn: each one, or all of its spaces together, if there are several kinds."""
    return [spec.own_agents] if spec.spaces else [[agent] for agent in spec.own_agents]


def make_team(spec: EnvSpec, opponent: str, players: Sequence[Player], seat: Sequence[int]) -> Team:
    """A policy with this spec as the agents of `seat`, and an opponent as all others.

    Args:
        spec: the policy's.
        opponent: its name.
        players: of the opponent for each of the `kinds` of spaces.
        seat: numbers of agents.
    """
    player_of = [0 if agent in seat else 1 + spec.kind_of(agent) for agent in range(spec.num_agents)]
    return Team(players, player_of, seat, opponent)


def play_matches(
    policy: Policy,
    opponents: dict[str, Sequence[Player]],
    *,
    episodes: int,
    num_envs: int = 8,
    seed: int = 0,
    deterministic: bool = False,
    make_envs: Callable[[str], MakeEnv | None] = lambda match: None,
) -> list[MatchResult]:
    """Plays a policy against each opponent, as each agent in turn. Arguments and errors are those of `evaluate`.

    Args:
        policy: the policy.
        opponents: by name, the player of each of the `kinds` of spaces; they may be copies of the policy.
        episodes: of each agent and opponent; of all agents of the policy's spaces together, if there are several kinds.
        num_envs: see `evaluate`.
        seed: see `evaluate`; the same for each agent and opponent.
        deterministic: see `evaluate`.
        make_envs: returns `make` of `evaluate` by the names of agent and opponent, as in `first against random`.
    """
    results, spec = [], policy.spec
    for opponent, players in opponents.items():
        for seat in seats_of(spec):
            team = make_team(spec, opponent, players, seat)
            names = [spec.agents[agent] for agent in seat]
            played = evaluate(
                policy,
                episodes=episodes,
                num_envs=num_envs,
                seed=seed,
                deterministic=deterministic,
                make=make_envs(f"{', '.join(names)} against {opponent}"),
                others=team.others,
                choose=team.choose,
            )
            others = zip(*(own for name, own in played.returns_by_agent.items() if name not in names), strict=True)
            own_returns = played.for_agents(seat).returns
            results.append(MatchResult(opponent, ", ".join(names), own_returns, tuple(map(max, others))))
    return results
