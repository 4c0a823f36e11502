"""Learners of SAC, TD3 and DQN on transitions without an environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transitions import CPU

from asyncrl.config.algorithms import imported
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.models.factory import make_acting_model


def small_config(algo: str = "sac", **settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "encoder_mlp_layers": [16],
        "encoder_conv_mlp_layers": [8],
        "normalize_input": False,
        "max_grad_norm": 0.0,
        "precision": "float32",
    }
    return TrainConfig(algo=algo, **{**defaults, **settings})


def make(
    spec: EnvSpec,
    double: bool = False,
    device: torch.device = CPU,
    by: str = "passes",
    storage: ParameterStore | None = None,
    **settings: Any,
) -> Any:
    """The learner that the settings name; it trains by autograd, or by passes if they know its networks."""
    config = small_config(**settings)
    model: Any = make_acting_model(spec, config)
    if by == "autograd":
        model.has_passes = False
    model = model.double() if double else model
    learner = imported(config.algorithm.make_learner)(model, config, spec, device, storage or ParameterStore())
    if by == "autograd":
        learner._step = learner._update
    return learner


def targets_of(learner: Any) -> Tensor:
    target: Tensor = learner.state_dict().optimizer["target_critic"]
    return target
