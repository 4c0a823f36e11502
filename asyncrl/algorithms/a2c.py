"""Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algorithms.losses import LossMetrics, Mean, Samples, with_common_losses
from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import ActionDistribution


def a2c_policy_loss(log_prob: Tensor, advantages: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Policy gradient: -E[log pi(a|s) A], both [B] float32."""
    return -mean(log_prob * advantages)


def a2c_loss(
    parameters: Tensor, values: Tensor, batch: Samples, distribution: ActionDistribution, config: TrainConfig
) -> LossMetrics:
    """The loss of a minibatch; see `Algorithm.loss`."""
    log_prob = distribution.log_prob(parameters, batch.action)
    policy_loss = a2c_policy_loss(log_prob, batch.advantage, batch.mean)
    return with_common_losses(policy_loss, log_prob, parameters, values, batch, distribution, config)
