"""Makes the model that acts, for each algorithm."""

from __future__ import annotations

from typing import Any, TypeVar

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.registry import DEFAULT, make_registered_model
from asyncrl.models.sac import SacActor
from asyncrl.models.state_dependent import StateDependentActorCritic, StateDependentSacActor

ActingModel = ActorCritic | SacActor
_M = TypeVar("_M", ActorCritic, SacActor)
_STATE_DEPENDENT: dict[Any, Any] = {ActorCritic: StateDependentActorCritic, SacActor: StateDependentSacActor}


def make_acting_model(spec: EnvSpec, config: TrainConfig) -> ActingModel:
    """The model with which rollout workers, inference workers and evaluation act; its weights follow from the seed."""
    algorithm = config.algorithm
    if algorithm.make_model is not None:
        made = imported(algorithm.make_model)(spec, config)
        kind = SacActor if config.is_off_policy else ActorCritic
        if not isinstance(made, kind):
            raise UsageError(f"--algo={config.algo} makes a {type(made).__name__}, not a subclass of {kind.__name__}.")
        return made
    return make_model(SacActor, spec, config) if config.is_off_policy else make_model(ActorCritic, spec, config)


def make_model(kind: type[_M], spec: EnvSpec, config: TrainConfig) -> _M:
    """`ActorCritic` for algorithms that learn from trajectories, SAC's `SacActor`, or a registered model."""
    if config.model == DEFAULT:
        made: _M = (_STATE_DEPENDENT[kind] if config.use_sde else kind)(spec, config)
        return made
    model = make_registered_model(spec, config)
    if not isinstance(model, kind):
        raise UsageError(f"--model={config.model} is a {type(model).__name__}, not a subclass of {kind.__name__}.")
    return model
