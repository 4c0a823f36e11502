"""What training on one dataset leaves for the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import ClipRange, approximate_kl, effective_sample_size, explained_variance
from asyncrl.learner.ranks import Ranks
from asyncrl.models.distributions import ActionDistribution
from asyncrl.monitoring.reports import TrainMetrics

_MOST_DISTRIBUTIONS = 256  # whose entropy is computed: that of squashed actions takes a quadrature


FIGURES = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "kl_loss", "kl", "grad_norm")
LOSS, KL, GRAD_NORM = (FIGURES.index(name) for name in ("loss", "kl", "grad_norm"))


class Step(NamedTuple):
    """What one optimizer step leaves for the metrics.

    Attributes:
        figures: [7], see `FIGURES`.
        log_ratio: [B].
    """

    figures: Tensor
    log_ratio: Tensor


def train_metrics(
    steps: Sequence[Step],
    learning_rates: Sequence[float],
    raw_values: Tensor,
    raw_returns: Tensor,
    behaviour: Tensor,
    weights: Tensor | None,
    clip: ClipRange,
    distribution: ActionDistribution,
    ranks: Ranks,
) -> TrainMetrics:
    """Bring every figure to the host in one transfer; those that are not of all ranks anyway are their means.

    Args:
        steps: those that were taken, at least one.
        learning_rates: of all steps.
        raw_values: [N] float32, in units of rewards.
        raw_returns: [N] float32, in units of rewards.
        behaviour: [N, P] float32, parameters of the distributions that the actions were drawn from.
        weights: [N] float32, what advantages were multiplied by; None where they were not.
        clip: bounds of PPO's ratio.
        distribution: what the parameters are of.
        ranks: the learners that train together.
    """
    means = torch.stack([step.figures for step in steps]).mean(0)
    log_ratio = torch.cat([step.log_ratio for step in steps])
    own = means.new_zeros(7)
    if log_ratio.numel() > 0:
        ratio = log_ratio.exp()
        clipped = ((ratio < clip.low) | (ratio > clip.high)).float().mean()
        first_deviation = steps[0].log_ratio.expm1().abs().amax(0)
        sample_size = effective_sample_size(steps[0].log_ratio if weights is None else weights.log())
        variance = explained_variance(raw_values, raw_returns)
        # Of evenly spaced distributions where there are many.
        spaced = behaviour[:: -(-len(behaviour) // _MOST_DISTRIBUTIONS)]
        with torch.no_grad():
            entropy = distribution.entropy(spaced).mean()
        positions = distribution.deviation_positions
        std = spaced[:, list(positions)].exp().mean() if positions else torch.zeros_like(entropy)
        own = torch.stack((approximate_kl(log_ratio), clipped, sample_size, variance, first_deviation, entropy, std))
    if ranks.num_ranks > 1:
        ranks.average([own], log_ratio.numel())
    figures: list[float] = torch.cat((means, own)).tolist()
    loss, policy, value, entropy_loss, kl_loss, _, grad_norm, *rest = figures
    approx_kl, clip_fraction, effective_size, explained, ratio_deviation, mean_entropy, mean_std = rest
    return TrainMetrics(
        loss=loss,
        policy_gradient_loss=policy,
        value_loss=value,
        entropy_loss=entropy_loss,
        kl_loss=kl_loss,
        approx_kl=approx_kl,
        clip_fraction=clip_fraction,
        effective_sample_size=effective_size,
        explained_variance=explained,
        learning_rate=sum(learning_rates) / len(learning_rates),
        grad_norm=grad_norm,
        max_ratio_deviation_first_batch=ratio_deviation,
        entropy=mean_entropy,
        std=mean_std if distribution.num_deviations > 0 else None,
    )
