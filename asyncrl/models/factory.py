"""Makes the model that acts, for each algorithm."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

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


def check_buffers(spec: EnvSpec, config: TrainConfig) -> None:
    """Checks that networks of a user have no buffers that each process would make or change for itself.

    Processes that act get the parameters; the buffers are those that their own constructor has made.

    Raises:
        UsageError: a buffer is drawn at random, or is a running statistic.
    """
    first, second = (_networks(spec, config.model_copy(update={"seed": seed})) for seed in (0, 1))
    for name, module in first.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise UsageError(
                f"{name} is {type(module).__name__}, whose running statistics only the learner would have: normalize "
                "without them, as LayerNorm does."
            )
    for (name, one), other in zip(first.named_buffers(), second.buffers(), strict=True):
        if not torch.equal(one, other):
            raise UsageError(
                f"The buffer {name} of the network is drawn at random, so each process would have another one: make it "
                "a parameter with requires_grad=False, which is sent to all of them."
            )


def _networks(spec: EnvSpec, config: TrainConfig) -> nn.Module:
    model = make_acting_model(spec, config)
    return nn.ModuleList([model, model.make_critic(spec, config)]) if isinstance(model, SacActor) else model
