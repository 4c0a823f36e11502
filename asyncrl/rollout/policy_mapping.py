"""Which of several policies plays each agent of each environment, chosen for each of its episodes.

shared           policy 0 plays all agents
independent      agent i has policy i
random           each policy is equally likely
module:function  the user's `function(agent: str, env_idx: int, episode: int) -> int`
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from asyncrl.config.env_maker import find_callable
from asyncrl.config.errors import UsageError
from asyncrl.config.user_modules import import_user_module
from asyncrl.monitoring.reports import MatchRecord

SINGLE_AGENT = "agent_0"
"""Name of the agent of an environment with one agent."""

ChoosePolicy = Callable[[str, int, int], int]
"""From the agent's name, the environment's number in the run, and the number of the agent's episode in this
environment, counted from 0 since the worker started; to the number of the policy."""


class PolicyMapping:
    """The policy of each column of a split. Groups call `begin` when an episode of a column begins in the next row.

    Attributes:
        policy_idx: [C] int16, of the row that is to be acted on next. An agent that is absent keeps the policy of its
            episode before; 0 before the first.
        matches: in self-play, the games against the pool that have ended, until somebody takes them.
    """

    def __init__(
        self, choose: ChoosePolicy, num_policies: int, agents: Sequence[str], num_envs: int, first_env_idx: int
    ) -> None:
        """Takes the agents of one environment, and the environments of the split, numbered from `first_env_idx`."""
        self._choose = choose
        self._num_policies = num_policies
        self._columns = [(agent, first_env_idx + env) for env in range(num_envs) for agent in agents]
        self._episodes = [0] * len(self._columns)
        self.policy_idx = np.zeros(len(self._columns), dtype=np.int16)
        self.matches: list[MatchRecord] = []

    @property
    def is_trained(self) -> npt.NDArray[np.bool_]:
        """[C], whether the policy of a column trains on its rows."""
        return self.policy_idx < self._num_policies

    def end(self, column: int, episode_return: float) -> int | None:
        """Notes that the episode of a column has ended; returns the policy that played it, None for an opponent."""
        policy_idx = int(self.policy_idx[column])
        return policy_idx if policy_idx < self._num_policies else None

    def begin(self, columns: Iterable[int]) -> None:
        """Chooses the policies of columns in which an episode begins.

        Raises:
            UsageError: the function returned what is not the number of a policy.
        """
        for column in columns:
            (agent, env_idx), episode = self._columns[column], self._episodes[column]
            self._episodes[column] += 1
            chosen = self._choose(agent, env_idx, episode)
            try:
                policy_idx = operator.index(chosen)
            except TypeError:
                policy_idx = -1
            if not 0 <= policy_idx < self._num_policies:
                raise UsageError(
                    f"--policy_mapping: the function returned {chosen!r} for agent {agent!r} in environment {env_idx}, "
                    f"episode {episode}; expected the number of a policy, from 0 to {self._num_policies - 1}."
                )
            self.policy_idx[column] = policy_idx


def choose_by_name(mapping: str, num_policies: int, agents: Sequence[str], seed: int) -> ChoosePolicy:
    """The function behind a value of `--policy_mapping`.

    Args:
        mapping: one of the module's table.
        num_policies: policies of the run, P.
        agents: agents of each environment; empty for a single one.
        seed: of the draws of `random`.

    Raises:
        UsageError: there is no such function, or `independent` has not one policy for each agent.
    """
    if mapping == "shared":
        return lambda agent, env_idx, episode: 0
    if mapping == "random":
        generator = np.random.default_rng(seed)
        return lambda agent, env_idx, episode: int(generator.integers(num_policies))
    if mapping == "independent":
        names = list(agents) or [SINGLE_AGENT]
        if len(names) != num_policies:
            raise UsageError(
                f"--policy_mapping=independent needs one policy for each agent, but the environment has {len(names)} "
                f"agents and the run has {num_policies} policies: set --num_policies={len(names)}."
            )
        return lambda agent, env_idx, episode: names.index(agent)
    module, _, name = mapping.partition(":")
    if not module or not name:
        raise UsageError(f"--policy_mapping={mapping} is not shared, independent, random or module:function.")
    import_user_module(module)
    function = find_callable(module, name)
    if function is None:
        raise UsageError(f"--policy_mapping={mapping}: the module {module!r} has no function {name!r}.")
    return function
