"""Matches: a policy as one agent of an environment, and an opponent as all the others."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.envs.actions import ActionAdapter
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import Player, evaluate
from asyncrl.models.distributions import make_distribution
from asyncrl.models.uniform import UniformPolicy
from asyncrl.policy import Policy

_Z_975 = 1.959964


class RandomPlayer:
    """Draws its actions uniformly from those that are allowed."""

    def __init__(self, policy: Policy, seed: int) -> None:
        """Plays in the environment of `policy`."""
        spec, config = policy.spec, policy.config
        distribution = make_distribution(spec.action, config.squashes)
        self._uniform = UniformPolicy(distribution, seed, spec.observation)
        self._adapter = ActionAdapter(spec, config.action_mapping)

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
        agent: the agent that the policy played; the opponent played all others.
        returns: the policy's return in each episode.
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
        of_agent = {"opponent": self.opponent, "agent": self.agent, **counts}
        return {**of_agent, "won_ci95": self.won_ci95, "mean_reward": self.mean_return}


def play_matches(
    policy: Policy,
    opponents: dict[str, Player],
    *,
    episodes: int,
    num_envs: int = 8,
    seed: int = 0,
    deterministic: bool = False,
    make: Callable[[int], gymnasium.Env[Any, Any]] | None = None,
) -> list[MatchResult]:
    """Plays a policy against each opponent, as each agent in turn. Arguments and errors are those of `evaluate`.

    Args:
        policy: the policy.
        opponents: by name; they may be copies of the policy.
        episodes: of each agent and opponent.
        num_envs: see `evaluate`.
        seed: see `evaluate`; the same for each agent and opponent.
        deterministic: see `evaluate`.
        make: see `evaluate`.
    """
    results, agents = [], policy.spec.agents
    for name, opponent in opponents.items():
        for seat, agent in enumerate(agents):
            played = evaluate(
                policy,
                episodes=episodes,
                num_envs=num_envs,
                seed=seed,
                deterministic=deterministic,
                make=make,
                others=[opponent],
                choose=lambda place, _, seat=seat: int(place != seat),  # type: ignore[misc]
            ).returns_by_agent
            others = zip(*(returns for other, returns in played.items() if other != agent), strict=True)
            results.append(MatchResult(name, agent, played[agent], tuple(map(max, others))))
    return results


def same_spaces(one: EnvSpec, other: EnvSpec) -> bool:
    """Whether a policy of one environment can play in the other."""
    return dataclasses.replace(one, env_id="", max_episode_steps=None) == dataclasses.replace(
        other, env_id="", max_episode_steps=None
    )
