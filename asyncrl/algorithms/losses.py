"""Losses of on-policy algorithms over minibatches of valid samples. Every loss is to be minimized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

_ADVANTAGE_EPS = 1e-8

Mean = Callable[[Tensor], Tensor]
"""From numbers of samples `[B]` to their mean, in which some may not count."""


class ClipRange(NamedTuple):
    """Bounds of PPO's probability ratio."""

    low: float
    high: float


def clip_range(clip_ratio: float, mode: Literal["symmetric", "reciprocal"]) -> ClipRange:
    """Bounds [1-c, 1+c], or [1/(1+c), 1+c], which is symmetric in the logarithm."""
    low = 1.0 - clip_ratio if mode == "symmetric" else 1.0 / (1.0 + clip_ratio)
    return ClipRange(low, 1.0 + clip_ratio)


def ppo_policy_loss(log_ratio: Tensor, advantages: Tensor, clip: ClipRange, mean: Mean = torch.mean) -> Tensor:
    """Clipped surrogate objective (Schulman et al. 2017, arXiv:1707.06347, equation 7), negated.

    Args:
        log_ratio: [B] float32, log-probability of the current policy minus that of the behaviour policy.
        advantages: [B] float32.
        clip: bounds of the ratio.
        mean: over samples.
    """
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(clip.low, clip.high) * advantages)
    return -mean(surrogate)


def a2c_policy_loss(log_prob: Tensor, advantages: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Policy gradient (Mnih et al. 2016, arXiv:1602.01783): -E[log pi(a|s) A], both [B] float32."""
    return -mean(log_prob * advantages)


def squared_value_loss(values: Tensor, returns: Tensor, mean: Mean = torch.mean) -> Tensor:
    """Mean squared error, without the factor 1/2; both [B] float32 in units of normalized returns."""
    return mean((values - returns).square())


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float, mean: Mean = torch.mean
) -> Tensor:
    """The larger of the squared errors with and without clipping the change since `old_values` to +-clip.

    The form of OpenAI Baselines' PPO2; all tensors [B] float32 in units of normalized returns.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return mean(torch.maximum((values - returns).square(), (clipped - returns).square()))


def advantage_sums(advantages: Tensor) -> Tensor:
    """`[3]` float64: count, sum and sum of squares of `[B]` advantages. Those of parts of a minibatch add up."""
    numbers = advantages.double()
    return torch.stack((numbers.new_full((), len(numbers)), numbers.sum(), numbers.square().sum()))


def normalize_advantages(advantages: Tensor, sums: Tensor) -> Tensor:
    """Shift and scale `[B]` advantages to mean 0 and deviation 1 over the minibatch that `advantage_sums` is of."""
    mean, mean_square = sums[1] / sums[0], sums[2] / sums[0]
    std = (mean_square - mean.square()).clamp_(min=0.0).sqrt()
    return ((advantages - mean) / (std + _ADVANTAGE_EPS)).to(advantages.dtype)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(behaviour || current) from samples: mean of (r - 1) - log r (Schulman 2020, joschu.net/blog/kl-approx)."""
    return (log_ratio.expm1() - log_ratio).mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var[returns - values] / Var[returns], both [N]; 0 where the returns do not vary."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1.0 - (returns - values).var(correction=0) / variance, torch.zeros_like(variance))
