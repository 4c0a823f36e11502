"""The model that acts, of each algorithm."""

from __future__ import annotations

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.registry import DEFAULT, make_registered_model
from asyncrl.models.sac import SacActor

ActingModel = ActorCritic | SacActor


def make_acting_model(spec: EnvSpec, config: TrainConfig) -> ActingModel:
    """What rollout workers, inference workers and evaluation act with; its weights follow from the seed."""
    algorithm = config.algorithm
    if algorithm.make_model is not None:
        model: ActingModel = imported(algorithm.make_model)(spec, config)
        return model
    return make_sac_actor(spec, config) if config.is_off_policy else make_actor_critic(spec, config)


def make_actor_critic(spec: EnvSpec, config: TrainConfig) -> ActorCritic:
    """Actor and critic of the algorithms that learn from trajectories: the package's, or one of the user's own."""
    if config.model == DEFAULT:
        return ActorCritic(spec, config)
    model = make_registered_model(spec, config)
    if not isinstance(model, ActorCritic):
        raise UsageError(f"--model={config.model} is a {type(model).__name__}, not a subclass of ActorCritic.")
    return model


def make_sac_actor(spec: EnvSpec, config: TrainConfig) -> SacActor:
    """SAC's policy: the package's, or one of the user's own."""
    if config.model == DEFAULT:
        return SacActor(spec, config)
    model = make_registered_model(spec, config)
    if not isinstance(model, SacActor):
        raise UsageError(f"--model={config.model} is a {type(model).__name__}, not a subclass of SacActor.")
    return model
