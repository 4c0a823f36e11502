"""SAC learners on transitions without an environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transitions import CPU

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.sac import SacLearner
from asyncrl.models.sac import SacActor


def make(
    spec: EnvSpec, double: bool = False, device: torch.device = CPU, by: str = "passes", **settings: Any
) -> SacLearner:
    defaults: dict[str, Any] = {
        "algo": "sac",
        "encoder_mlp_layers": [16],
        "normalize_input": False,
        "max_grad_norm": 0.0,
        "precision": "float32",
    }
    config = TrainConfig(**{**defaults, **settings})
    actor = SacActor(spec, config)
    actor.has_passes = by != "autograd"
    return SacLearner(actor.double() if double else actor, config, spec, device)


def targets_of(learner: SacLearner) -> Tensor:
    return learner.state_dict().optimizer["target_critic"]
