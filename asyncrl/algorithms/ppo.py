"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.losses import LossMetrics, LossOfSamples, Mean, Samples, with_common_losses
from asyncrl.config.schema import TrainConfig
from asyncrl.models.array_policy import FloatArray
from asyncrl.models.distributions import ActionDistribution


class ClipRange(NamedTuple):
    """Bounds of PPO's probability ratio."""

    low: float
    high: float


def clip_range(clip_ratio: float, mode: Literal["symmetric", "reciprocal"]) -> ClipRange:
    """Bounds [1-c, 1+c], or [1/(1+c), 1+c], which is symmetric in the logarithm."""
    low = 1.0 - clip_ratio if mode == "symmetric" else 1.0 / (1.0 + clip_ratio)
    return ClipRange(low, 1.0 + clip_ratio)


def ppo_policy_loss(log_ratio: Tensor, advantages: Tensor, clip: ClipRange, mean: Mean = torch.mean) -> Tensor:
    """Clipped surrogate objective (equation 7), negated.

    Args:
        log_ratio: [B] float32, log-probability of the current policy minus that of the policy it is kept close to.
        advantages: [B] float32, perhaps weighted: a factor w >= 0 of A is one of min(r A, clip(r) A).
        clip: bounds of the ratio.
        mean: over samples.
    """
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(clip.low, clip.high) * advantages)
    return -mean(surrogate)


def ppo_loss(
    parameters: Tensor, values: Tensor, batch: Samples, distribution: ActionDistribution, config: TrainConfig
) -> LossMetrics:
    """The loss of a minibatch; see `Algorithm.loss`."""
    log_prob = distribution.log_prob(parameters, batch.action)
    clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
    policy_loss = ppo_policy_loss(log_prob - batch.log_prob, batch.advantage, clip, batch.mean)
    return with_common_losses(policy_loss, log_prob, parameters, values, batch, distribution, config)


def array_policy_loss(
    log_prob: FloatArray, old_log_prob: FloatArray, advantages: FloatArray, config: TrainConfig
) -> LossOfSamples:
    """`ppo_policy_loss`, and its gradient with respect to the log-probabilities: -r A where the ratio is not clipped.

    Args:
        log_prob: [B], of the current policy.
        old_log_prob: [B], of the policy it is kept close to.
        advantages: [B].
        config: the bounds of the ratio.
    """
    clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
    ratio = np.exp(log_prob - old_log_prob)
    surrogate = ratio * advantages
    np.minimum(np.maximum(ratio, clip.low, out=ratio), clip.high, out=ratio)
    clipped = np.multiply(ratio, advantages, out=ratio)
    # A product, not a choice: as in autograd the gradient of an infinite ratio is NaN, and the step is left out.
    gradient = surrogate * (surrogate <= clipped)
    gradient *= -1.0 / len(gradient)
    return LossOfSamples(-float(np.add.reduce(np.minimum(surrogate, clipped, out=surrogate))) / len(gradient), gradient)
