"""Algorithms from outside the package: one that learns from trajectories, and one that learns from a replay."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

import asyncrl
from asyncrl.algorithms.losses import LossMetrics, Samples, with_common_losses
from asyncrl.algorithms.sac import Sac
from asyncrl.learner.sac import SacLearner
from asyncrl.models.distributions import ActionDistribution


class ReinforceConfig(asyncrl.TrainConfig):
    """The settings of a run, and the one that this algorithm adds."""

    advantage_power: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        1.0, description="advantages are raised to this power, their signs kept"
    )


def reinforce_loss(
    parameters: Tensor, values: Tensor, batch: Samples, distribution: ActionDistribution, config: ReinforceConfig
) -> LossMetrics:
    """The policy gradient with advantages of another shape."""
    log_prob = distribution.log_prob(parameters, batch.action)
    advantage = batch.advantage.sign() * batch.advantage.abs().pow(config.advantage_power)
    policy_loss = -batch.mean(log_prob * advantage)
    return with_common_losses(policy_loss, log_prob, parameters, values, batch, distribution, config)


REINFORCE = asyncrl.Algorithm(
    "reinforce",
    settings=ReinforceConfig,
    defaults={"num_epochs": 1, "batch_size": 128, "num_batches_per_epoch": 2, "target_kl": None},
    loss=reinforce_loss,
)


class BoundedSacConfig(asyncrl.TrainConfig):
    """The settings of a run, and the one that this algorithm adds."""

    most_value: float = Field(100.0, description="bound of the values that critics learn")


class BoundedTargets(Sac):
    """SAC whose critics learn bounded values."""

    def target(self, *args: Any) -> Tensor:
        bound: float = self.config.most_value  # type: ignore[attr-defined]
        return torch.clamp(super().target(*args), -bound, bound)


class BoundedSac(SacLearner):
    """Makes those updates."""

    algorithm_type = BoundedTargets


BOUNDED_SAC = asyncrl.Algorithm(
    "bounded_sac",
    collects="replay",
    settings=BoundedSacConfig,
    defaults={"batch_size": 64, "encoder_mlp_layers": [16], "normalize_input": False},
    make_learner=BoundedSac,
)
