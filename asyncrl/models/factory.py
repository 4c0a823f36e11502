"""Makes the model that acts, for each algorithm."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from asyncrl.config.algorithms import imported
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import load
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.observations import split_rows
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.registry import DEFAULT, make_registered_model
from asyncrl.models.sac import SacActor
from asyncrl.processes.own_settings import with_own_settings

ActingModel = ActorCritic | SacActor
_NUM_ROWS = 2
_M = TypeVar("_M", ActorCritic, SacActor)


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
        place = config.model_classes.get(kind.__name__)
        made: _M = (kind if place is None else load(place))(spec, config)
        return made
    model = make_registered_model(spec, config)
    if not isinstance(model, kind):
        raise UsageError(f"--model={config.model} is a {type(model).__name__}, not a subclass of {kind.__name__}.")
    return model


@with_own_settings
def check_networks(spec: EnvSpec, config: TrainConfig) -> None:
    """Checks networks of a user: calls them once, and refuses buffers that each process would make or change itself.

    Processes that act get the parameters; the buffers are those that their own constructor has made.

    Raises:
        UsageError: a buffer is drawn at random or is a running statistic, or an encoder returns other features than
            its `output_size` says.
        Exception: exceptions of the networks, unchanged.
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
    _call_once(first.eval(), config)


@torch.no_grad()
def _call_once(networks: nn.Module, config: TrainConfig) -> None:
    """Calls the encoders, then the model, on two rows of zeros with masks that allow all choices."""
    owners = list(networks) if isinstance(networks, nn.ModuleList) else [networks]
    model: Any = owners[0]
    layout = model.layout
    rows = np.zeros((_NUM_ROWS, layout.row_size), layout.row_dtype)
    split_rows(layout, rows)[0][:, layout.num_features :] = 1.0
    inputs = model.inputs_of(torch.from_numpy(rows))
    named = [getattr(owner, name, None) for owner in owners for name in ("actor", "critic", "encoder")]
    for encoder in filter(None, named if config.encoder != DEFAULT else []):
        features, expected = encoder(inputs), (_NUM_ROWS, encoder.output_size)
        if not isinstance(features, torch.Tensor) or features.shape != expected:
            is_tensor = isinstance(features, torch.Tensor)
            found = f"a tensor {list(features.shape)}" if is_tensor else f"a {type(features).__name__}"
            raise UsageError(
                f"The encoder {config.encoder} returns {found} for {_NUM_ROWS} observations, but with its output_size "
                f"of {encoder.output_size} it must return a tensor {list(expected)}."
            )
    model.act(torch.from_numpy(rows), deterministic=True)


def _networks(spec: EnvSpec, config: TrainConfig) -> nn.Module:
    model = make_acting_model(spec, config)
    return nn.ModuleList([model, model.make_critic(spec, config)]) if isinstance(model, SacActor) else model
