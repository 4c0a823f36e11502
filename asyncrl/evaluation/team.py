"""Who plays the agents of an environment in which a policy is evaluated: the policy, and others of its run."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from asyncrl.config.errors import UsageError
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation.episodes import Player
from asyncrl.inference.policy import Policy, load_policy
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import policy_folder, run_of


class Team(NamedTuple):
    """Who plays the agents of an environment.

    Attributes:
        others: further players.
        player_of: for each agent the number of its player among `(policy, *others)`.
        own: the agents that the policy plays; all of them if it plays alone.
        name_of_others: what is shown for the other agents.
    """

    others: Sequence[Player]
    player_of: Sequence[int]
    own: Sequence[int]
    name_of_others: str = "its run"

    def choose(self, agent: int, episode: int) -> int:
        """See `evaluate`."""
        return self.player_of[agent]


def load_team(policy: Policy, checkpoint: Path, device: str, seed: int) -> Team:
    """The policy that was loaded from `checkpoint` and others of its run, as evaluations in training have it.

    With `--policy_mapping=independent` each agent has its own policy.

    Raises:
        UsageError: the checkpoint is in no run's folder, or the run has no checkpoint of a policy that is needed.
    """
    spec = policy.spec
    if policy.config.num_policies > 1 and policy.config.maps_policies == "independent":
        return _independent_team(policy, checkpoint, device, seed)
    if not spec.spaces:
        return Team([], [0] * spec.num_agents, list(range(spec.num_agents)))
    players = load_players(policy, checkpoint, device, seed)
    return Team(players, [1 + spec.kind_of(agent) for agent in range(spec.num_agents)], spec.own_agents)


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
    others: list[Policy] = []
    player_of = [0] * num_agents
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
