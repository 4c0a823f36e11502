"""Builds what plays whole episodes during training: evaluations and videos."""

from __future__ import annotations

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import EvaluationWorker, PublishedPolicy, PublishedTeam
from asyncrl.run.setup import RunSetup
from asyncrl.storage.run_folder import VIDEOS


def build_evaluation_workers(setup: RunSetup) -> list[EvaluationWorker | VideoWorker]:
    """An evaluation for each policy; one process serves all."""
    return [
        EvaluationWorker(team, setup.control, each.checkpoints, setup.first_env_steps, policy_idx)
        for policy_idx, (each, team) in enumerate(published_teams(setup, "evaluation"))
    ]


def build_video_workers(setup: RunSetup) -> list[EvaluationWorker | VideoWorker]:
    """The recorder of all policies' videos, if videos are wanted. Its own process, because drawing may crash one."""
    if setup.config.video_every_env_steps is None:
        return []
    teams = [team for _, team in published_teams(setup, VIDEOS)]
    return [VideoWorker(teams, setup.control, setup.checkpoints.parent / VIDEOS, setup.first_env_steps)]


def published_teams(setup: RunSetup, role: str) -> list[tuple[RunSetup, PublishedTeam]]:
    """The parts of the run that belong to each policy, and who plays whole episodes with it in a role during training.

    With `--policy_mapping=independent` each agent is played by its own policy. Otherwise the policy itself plays all
    agents of its spaces, and the first policy of their spaces plays each of the others.
    """
    setups = [setup.for_policy(idx) for idx in range(setup.plan.num_policies)]
    policies = [PublishedPolicy(each.config, each.spec, WeightsChannel(each.arena)) for each in setups]
    first = {agent: policy for policy in reversed(policies) for agent in policy.spec.own_agents}

    def team_of(policy: PublishedPolicy) -> PublishedTeam:
        if setup.config.maps_policies == "independent":
            players = dict(enumerate(policies))
        else:
            players = {**first, **dict.fromkeys(policy.spec.own_agents, policy)}
        others = {agent: player for agent, player in players.items() if player is not policy}
        return PublishedTeam(policy, others, setup.global_seed(role))

    return [(each, team_of(policy)) for each, policy in zip(setups, policies, strict=True)]
