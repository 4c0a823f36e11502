"""Which of several policies plays each agent of each environment, chosen for each of its episodes.

shared           policy 0 plays all agents
by_space         each policy of the agent's spaces is equally likely
independent      agent i has policy i
random           each policy is equally likely
module:function  the user's `function(agent: str, env_idx: int, episode: int) -> int`

If agents have different spaces, each policy has the spaces of some of them (`specs_of_policies`) and plays no others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.env_maker import find_callable
from asyncrl.config.errors import Problem, UsageError
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.envs.spec import EnvSpec

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
    """

    def __init__(
        self,
        choose: ChoosePolicy,
        num_policies: int,
        agents: Sequence[str],
        num_envs: int,
        first_env_idx: int,
        specs: Sequence[EnvSpec] = (),
    ) -> None:
        """Takes the agents of one environment, and the environments of the split, numbered from `first_env_idx`.

        `specs` are those of the policies, for agents with different spaces.
        """
        self._choose = choose
        self._num_policies = num_policies
        self._agents_of = [{agents[agent] for agent in spec.own_agents} for spec in specs]
        self._columns = [(agent, first_env_idx + env) for env in range(num_envs) for agent in agents]
        self._episodes = [0] * len(self._columns)
        self.policy_idx = np.zeros(len(self._columns), dtype=np.int16)

    @property
    def is_trained(self) -> npt.NDArray[np.bool_]:
        """[C], whether the policy of a column trains on its rows."""
        return self.policy_idx < self._num_policies

    def record_reset(self, env: int) -> None:
        """Notes that an environment of the split was reset: the next episodes of all its agents are of another game."""

    def take_notes(self) -> Sequence[object]:
        """What the mapping reports to the observer of its feature since the last call."""
        return ()

    def end(self, column: int, episode_return: float) -> int | None:
        """Notes that the episode of a column has ended; returns the policy that played it, None for an opponent."""
        policy_idx = int(self.policy_idx[column])
        return policy_idx if policy_idx < self._num_policies else None

    def begin(self, columns: Iterable[int]) -> None:
        """Chooses the policies of columns in which an episode begins.

        Raises:
            UsageError: the function returned what is not the number of a policy, or that of one with other spaces.
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
            if self._agents_of and agent not in self._agents_of[policy_idx]:
                fitting = [str(idx) for idx, names in enumerate(self._agents_of) if agent in names]
                raise UsageError(
                    f"--policy_mapping: the function returned {policy_idx} for agent {agent!r} in environment "
                    f"{env_idx}, episode {episode}, but policy {policy_idx} has the spaces of "
                    f"{', '.join(sorted(self._agents_of[policy_idx]))}; those of {agent} have: {', '.join(fitting)}."
                )
            self.policy_idx[column] = policy_idx


class MakeMapping(Protocol):
    """Makes the mapping of a split in which opponents play (`asyncrl.config.sections.section.Opponents`)."""

    def __call__(
        self, config: TrainConfig, plan: ResourcePlan, spec: EnvSpec, opponents: Sequence[WeightsChannel], seed: int
    ) -> PolicyMapping: ...


def specs_of_policies(spec: EnvSpec, mapping: str, num_policies: int) -> list[EnvSpec]:
    """The spec of each policy: that of its agent (independent), otherwise the kinds in equal blocks, in their order."""
    if mapping == "independent" and len(spec.of_agents) == num_policies:
        return [spec.kinds[kind] for kind in spec.of_agents]
    return [spec.kinds[idx * len(spec.kinds) // num_policies] for idx in range(num_policies)]


def needs_same_spaces(setting: str, spec: EnvSpec) -> Problem:
    """The problem of a setting that is possible only where all agents have the same spaces; those of `spec` differ."""
    text = f"--{setting}=True needs agents with the same spaces: those of {spec.env_id} differ."
    fitting = f"--{setting}=False --num_policies={len(spec.kinds)} --policy_mapping=by_space"
    return Problem((setting, "env"), text, (fitting,))


def choose_by_name(mapping: str, num_policies: int, spec: EnvSpec, seed: int) -> ChoosePolicy:
    """The function behind a value of `--policy_mapping`.

    Args:
        mapping: one of the module's table.
        num_policies: policies of the run, P.
        spec: spaces of the agents.
        seed: of the draws of `random` and `by_space`.

    Raises:
        UsageError: there is no such function, or the number of policies does not fit the agents or their spaces.
    """
    names, num_kinds = spec.agents or (SINGLE_AGENT,), len(spec.kinds)
    if mapping in ("shared", "random"):
        if num_kinds > 1:
            raise UsageError(
                f"--policy_mapping={mapping} gives agents to policies of other spaces: {spec.env_id} has agents with "
                f"{num_kinds} different spaces, so set --policy_mapping=by_space."
            )
        if mapping == "shared":
            return lambda agent, env_idx, episode: 0
    if mapping == "independent":
        if len(names) != num_policies:
            raise UsageError(
                f"--policy_mapping=independent needs one policy for each agent, but the environment has {len(names)} "
                f"agents and the run has {num_policies} policies: set --num_policies={len(names)}."
            )
        return lambda agent, env_idx, episode: names.index(agent)
    if num_policies % num_kinds != 0:
        nearest = max(1, (2 * num_policies + num_kinds) // (2 * num_kinds)) * num_kinds
        raise UsageError(
            f"{spec.env_id} has agents with {num_kinds} different spaces, each with as many policies, and "
            f"--num_policies={num_policies} is not a multiple of that: set --num_policies={nearest}."
        )
    if mapping in ("random", "by_space"):
        specs, generator = specs_of_policies(spec, mapping, num_policies), np.random.default_rng(seed)
        fitting = {
            name: [idx for idx, own in enumerate(specs) if agent in own.own_agents] for agent, name in enumerate(names)
        }
        return lambda agent, env_idx, episode: fitting[agent][int(generator.integers(len(fitting[agent])))]
    module, _, name = mapping.partition(":")
    if not module or not name:
        raise UsageError(f"--policy_mapping={mapping} is not shared, by_space, independent, random or module:function.")
    import_user_module(module)
    function = find_callable(module, name)
    if function is None:
        raise UsageError(f"--policy_mapping={mapping}: the module {module!r} has no function {name!r}.")
    return function
