"""Matches: a policy as one agent of an environment, and an opponent as all the others.

If agents have different spaces, the policy plays all agents of its spaces, and the opponent the others.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.actions import ActionAdapter, can_squash
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import Player, evaluate
from asyncrl.models.distributions import make_distribution
from asyncrl.models.uniform import UniformPolicy
from asyncrl.policy import Policy, load_policy
from asyncrl.runtime import checkpoint as checkpoints
from asyncrl.runtime.locating import policy_folder, run_of

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
        of_agent = {"opponent": self.opponent, "agent": self.agent, **counts}
        return {**of_agent, "won_ci95": self.won_ci95, "mean_reward": self.mean_return}


def seats_of(spec: EnvSpec) -> list[list[int]]:
    """The agents that a policy plays in turn: each one, or all of its spaces together, if there are several kinds."""
    return [spec.own_agents] if spec.spaces else [[agent] for agent in spec.own_agents]


def play_matches(
    policy: Policy,
    opponents: dict[str, Sequence[Player]],
    *,
    episodes: int,
    num_envs: int = 8,
    seed: int = 0,
    deterministic: bool = False,
    make: Callable[[str, int], gymnasium.Env[Any, Any]] | None = None,
) -> list[MatchResult]:
    """Plays a policy against each opponent, as each agent in turn. Arguments and errors are those of `evaluate`.

    Args:
        policy: the policy.
        opponents: by name, the player of each of the `kinds` of spaces; they may be copies of the policy.
        episodes: of each agent and opponent; of all agents of the policy's spaces together, if there are several kinds.
        num_envs: see `evaluate`.
        seed: see `evaluate`; the same for each agent and opponent.
        deterministic: see `evaluate`.
        make: see `evaluate`; it gets the names of agent and opponent, too, as in `first against random`.
    """
    results, spec = [], policy.spec
    for name, players in opponents.items():
        for seat in seats_of(spec):
            match = f"{', '.join(spec.agents[place] for place in seat)} against {name}"
            played = evaluate(
                policy,
                episodes=episodes,
                num_envs=num_envs,
                seed=seed,
                deterministic=deterministic,
                make=None if make is None else functools.partial(make, match),
                others=players,
                choose=lambda place, _, seat=seat: 0 if place in seat else 1 + spec.kind_of(place),  # type: ignore[misc]
            )
            names = [spec.agents[place] for place in seat]
            others = zip(*(own for name, own in played.returns_by_agent.items() if name not in names), strict=True)
            own_returns = played.of_agents(seat).returns
            results.append(MatchResult(name, ", ".join(names), own_returns, tuple(map(max, others))))
    return results


class Team(NamedTuple):
    """Who plays the agents of an environment where no opponent is named, as evaluations in training have it.

    Attributes:
        others: further policies of the run.
        player_of: for each agent the number of its player among `(policy, *others)`.
        own: the agents that the policy plays; all of them if it plays alone.
    """

    others: list[Policy]
    player_of: list[int]
    own: list[int]

    def choose(self, agent: int, episode: int) -> int:
        """See `evaluate`."""
        return self.player_of[agent]


def load_team(policy: Policy, checkpoint: Path, device: str, seed: int) -> Team:
    """The team of a policy that was loaded from `checkpoint`.

    With `--policy_mapping=independent` each agent has a policy of its own.

    Raises:
        UsageError: the checkpoint is in no run's folder, or the run has no checkpoint of a policy that is needed.
    """
    spec = policy.spec
    if policy.config.num_policies > 1 and policy.config.maps_policies == "independent":
        return _independent_team(policy, checkpoint, device, seed)
    if not spec.spaces:
        return Team([], [0] * spec.num_agents, list(range(spec.num_agents)))
    players = load_players(policy, checkpoint, device, seed)
    return Team(list(players), [1 + spec.kind_of(agent) for agent in range(spec.num_agents)], spec.own_agents)


def _independent_team(policy: Policy, checkpoint: Path, device: str, seed: int) -> Team:
    run, num_agents = run_of(checkpoint), policy.spec.num_agents
    folders = [] if run is None else [policy_folder(run / "checkpoints", agent) for agent in range(num_agents)]
    own = next(
        (agent for agent, folder in enumerate(folders) if folder.resolve() in checkpoint.resolve().parents), None
    )
    if own is None:
        raise UsageError(
            f"The policy of {checkpoint} plays one agent of several (--policy_mapping=independent), and the others are "
            "those of its run: give a checkpoint in the run's folder."
        )
    others, player_of = [], [0] * num_agents
    for agent, folder in enumerate(folders):
        if agent != own:
            newest = checkpoints.latest(folder)
            if newest is None:
                raise UsageError(f"{folder} has no checkpoint yet: let the run train until it has saved one.")
            others.append(load_policy(newest, device=device, seed=seed + 1 + agent))
            player_of[agent] = len(others)
    return Team(others, player_of, [own])


def load_players(policy: Policy, checkpoint: Path, device: str, seed: int) -> list[Policy]:
    """The policies that play all agents together, one for each of the environment's `kinds` of spaces.

    They are `policy`, loaded from `checkpoint`, and for other spaces the first policy of its run that has them.

    Raises:
        UsageError: the checkpoint is in no run's folder, or the run has no checkpoint of such a policy.
    """
    kinds, run = policy.spec.kinds, run_of(checkpoint)
    found = {kinds.index(policy.spec): policy}
    for policy_idx in itertools.count():
        if len(found) == len(kinds) or run is None:
            break
        folder = policy_folder(run / "checkpoints", policy_idx)
        if not folder.is_dir():
            break
        newest = checkpoints.latest(folder)
        spec = None if newest is None else EnvSpec.from_data(checkpoints.load_state(newest)["spec"])
        if newest is not None and spec in kinds and kinds.index(spec) not in found:
            found[kinds.index(spec)] = load_policy(newest, device=device, seed=seed + 1 + policy_idx)
    absent = [
        policy.spec.agents[agent] for agent in range(policy.spec.num_agents) if policy.spec.kind_of(agent) not in found
    ]
    if absent:
        where = "is in no run's folder" if run is None else f"is in {run}, which has no checkpoint of one that can"
        raise UsageError(
            f"The policy of {checkpoint} cannot play {', '.join(absent)}, which have other spaces, and it {where}."
        )
    return [found[kind] for kind in range(len(kinds))]


def same_spaces(one: EnvSpec, other: EnvSpec) -> bool:
    """Whether policies of one environment can play in the other."""
    fields = ("observation", "action", "agents", "spaces", "of_agents")
    first, second = ([getattr(spec.kinds[0], name) for name in fields] for spec in (one, other))
    return first == second
