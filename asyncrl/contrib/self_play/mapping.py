"""Self-play: who plays the agents of a game, drawn for each game of an environment, and how games against the pool end.

A game is one episode of an environment, whatever the number of its agents. It begins with the first agent whose episode
begins after a reset, or in an environment that resets its agents one by one when each has ended an episode of the game
before. Agents that come later play in the same game.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.self_play.settings import SelfPlaySettings
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.policy_mapping import PolicyMapping

_POLICY = 0


def make_mapping(
    config: TrainConfig, plan: ResourcePlan, spec: EnvSpec, opponents: Sequence[WeightsChannel], seed: int
) -> SelfPlayMapping:
    """The mapping of a split (`asyncrl.rollout.policy_mapping.MakeMapping`)."""
    share = SelfPlaySettings.of(config).self_play_pool_share
    return SelfPlayMapping(opponents, share, spec.agents, plan.envs_per_split, seed)


@dataclass(frozen=True)
class MatchRecord:
    """A finished training game of the policy against a member of the pool.

    Attributes:
        member: environment steps for which the member had trained.
        score: 1 if the policy's return was above that of every other agent, 0.5 if it was equal to the largest of
            them, otherwise 0.
    """

    member: int
    score: float


@dataclass
class _Game:
    """One game.

    Attributes:
        agent: the column that the policy plays; None if it plays all.
        opponent: number of the opponent that plays all others.
        member: environment steps of the member of the pool that was this opponent when the game began.
        begun: columns whose episodes have begun.
        returns: of the first episodes of columns that have ended.
    """

    agent: int | None = None
    opponent: int = 0
    member: int = 0
    begun: set[int] = field(default_factory=set)
    returns: dict[int, float] = field(default_factory=dict)


class SelfPlayMapping(PolicyMapping):
    """A `PolicyMapping` to policy 0, which trains, and to the opponents in the pool, numbered from 1 on.

    In the given share of the games, policy 0 plays one agent and one opponent plays all others; all agents and all
    opponents that have published weights are equally likely. In other games policy 0 plays all agents.

    Attributes:
        matches: the games against the pool that have ended, until somebody takes them.
    """

    def __init__(
        self, opponents: Sequence[WeightsChannel], share: float, agents: Sequence[str], num_envs: int, seed: int
    ) -> None:
        """Takes the weights of all opponents, and the agents of one of the split's environments."""
        super().__init__(lambda agent, env_idx, episode: _POLICY, 1, agents, num_envs, 0)
        self._opponents = opponents
        self._share = share
        self._num_agents = len(agents)
        self._generator = np.random.default_rng(seed)
        self._games = [_Game() for _ in range(num_envs)]
        self.matches: list[MatchRecord] = []

    def take_notes(self) -> list[MatchRecord]:
        """See `PolicyMapping`: the games against the pool that have ended."""
        taken, self.matches = self.matches, []
        return taken

    def begin(self, columns: Iterable[int]) -> None:
        """Gives columns in which an episode begins to who plays them in their environment's game."""
        for column in columns:
            env = column // self._num_agents
            game = self._games[env]
            if len(game.returns) == len(game.begun):
                game = self._games[env] = self._draw(env)
            game.begun.add(column)
            is_own = game.agent is None or column == game.agent
            self.policy_idx[column] = _POLICY if is_own else 1 + game.opponent

    def record_reset(self, env: int) -> None:
        """See `PolicyMapping`: the next episode begins another game."""
        self._games[env] = _Game()

    def end(self, column: int, episode_return: float) -> int | None:
        """See `PolicyMapping`; when the last episode of a game against the pool ends, its result is known."""
        game = self._games[column // self._num_agents]
        if column not in game.begun or column in game.returns:
            return super().end(column, episode_return)  # of the game before, or not its first of this one
        game.returns[column] = episode_return
        if game.agent is not None and game.agent in game.returns and len(game.returns) == len(game.begun) > 1:
            own = game.returns[game.agent]
            others = max(value for each, value in game.returns.items() if each != game.agent)
            # The opponent may have become a newer member during the game, which then says nothing about either.
            if self._opponents[game.opponent].newest.env_steps == game.member:
                self.matches.append(MatchRecord(game.member, 1.0 if own > others else 0.5 if own == others else 0.0))
        return super().end(column, episode_return)

    def _draw(self, env: int) -> _Game:
        in_pool = [number for number, channel in enumerate(self._opponents) if channel.num_publications > 0]
        if not in_pool or self._generator.random() >= self._share:
            return _Game()
        agent = env * self._num_agents + int(self._generator.integers(self._num_agents))
        opponent = in_pool[int(self._generator.integers(len(in_pool)))]
        return _Game(agent, opponent, self._opponents[opponent].newest.env_steps)
