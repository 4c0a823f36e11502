"""The model that acts, for each algorithm."""

from __future__ import annotations

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.sac import SacActor

ActingModel = ActorCritic | SacActor


def make_acting_model(spec: EnvSpec, config: TrainConfig) -> ActingModel:
    """What rollout workers, inference workers and evaluation act with; its weights follow from the seed."""
    return SacActor(spec, config) if config.is_off_policy else ActorCritic(spec, config)
