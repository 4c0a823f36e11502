"""What PPO and A2C descend: the loss of a minibatch, from what the networks say of it."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algorithms.losses import (
    a2c_policy_loss,
    clip_range,
    clipped_value_loss,
    ppo_policy_loss,
    squared_value_loss,
)
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.dataset import Samples
from asyncrl.models.distributions import ActionDistribution

NUM_FIGURES = 6


class OnPolicyLoss:
    """The loss that the settings describe.

    Attributes:
        clip: bounds of PPO's probability ratio.
        needs_kl: whether the KL divergence is computed, for the loss or because something else follows it.
    """

    def __init__(self, config: TrainConfig, distribution: ActionDistribution, is_rate_adaptive: bool) -> None:
        """Takes the distribution whose parameters the networks give."""
        self._config = config
        self._distribution = distribution
        self.clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
        self.needs_kl = config.kl_loss_coeff > 0.0 or is_rate_adaptive

    def figures(self, parameters: Tensor, values: Tensor, batch: Samples) -> tuple[Tensor, Tensor]:
        """Means over a minibatch `[6]`: the loss, its four parts, and KL(old || policy); and the log-ratios.

        Old is the policy of `batch.log_prob` and `batch.action_parameters`; `batch.advantage` is weighted already.
        """
        config, distribution, mean = self._config, self._distribution, batch.mean
        log_prob = distribution.log_prob(parameters, batch.action)
        log_ratio = log_prob - batch.log_prob
        if config.algo == "ppo":
            policy_loss = ppo_policy_loss(log_ratio, batch.advantage, self.clip, mean)
        else:
            policy_loss = a2c_policy_loss(log_prob, batch.advantage, mean)
        value_loss = self._value_loss(values, batch)
        loss = policy_loss + value_loss
        entropy_loss = kl_loss = kl = torch.zeros((), device=parameters.device)
        if config.entropy_loss_coeff > 0.0:
            entropy_loss = -config.entropy_loss_coeff * mean(distribution.entropy(parameters))
            loss = loss + entropy_loss
        if self.needs_kl:
            kl = mean(distribution.kl(batch.action_parameters, parameters))
        if config.kl_loss_coeff > 0.0:
            kl_loss = config.kl_loss_coeff * kl
            loss = loss + kl_loss
        return torch.stack((loss, policy_loss, value_loss, entropy_loss, kl_loss, kl)), log_ratio

    def _value_loss(self, values: Tensor, batch: Samples) -> Tensor:
        clip = self._config.ppo_clip_value
        if clip is None:
            loss = squared_value_loss(values, batch.normalized_return, batch.mean)
        else:
            loss = clipped_value_loss(values, batch.normalized_value, batch.normalized_return, clip, batch.mean)
        return self._config.value_loss_coeff * loss
