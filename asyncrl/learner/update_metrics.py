"""Figures of an update on one dataset: what each optimizer step leaves, and what is computed from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import approximate_kls, effective_sample_size, explained_variance
from asyncrl.algorithms.ppo import clip_range
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.dataset import Dataset
from asyncrl.models.distributions import ActionDistribution

FIGURES = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss", "kl_loss", "kl", "grad_norm")
"""What each step computes anyway."""

DATASET_FIGURES = (
    "approx_kl",
    "clip_fraction",
    "effective_sample_size",
    "explained_variance",
    "max_ratio_deviation_first_batch",
    "entropy",
    "std",
)
"""What `dataset_figures` returns."""

LOSS, KL, GRAD_NORM = (FIGURES.index(name) for name in ("loss", "kl", "grad_norm"))

_MOST_DISTRIBUTIONS = 256  # whose entropy is computed: that of squashed actions takes a quadrature


class Step(NamedTuple):
    """What one optimizer step leaves for the metrics: `figures [7]`, see `FIGURES`, and `log_ratio [B]`."""

    figures: Tensor
    log_ratio: Tensor


class RawEstimates(NamedTuple):
    """What the critic said and should have said of the valid rows of a dataset, in units of scaled rewards.

    Attributes:
        valid: [N] int64, the valid rows.
        values: [N] float32, before training.
        returns: [N] float32.
    """

    valid: Tensor
    values: Tensor
    returns: Tensor


def were_taken(steps: Sequence[Step]) -> Tensor:
    """Whether each step was taken, [steps] bool."""
    return torch.isfinite(torch.stack([step.figures for step in steps])[:, (LOSS, GRAD_NORM)]).all(1)


@torch.no_grad()
def dataset_figures(
    dataset: Dataset,
    estimates: RawEstimates,
    steps: Sequence[Step],
    log_weight: Tensor | None,
    distribution: ActionDistribution,
    config: TrainConfig,
) -> Tensor:
    """`DATASET_FIGURES` of an update, [7] float32.

    Args:
        dataset: the dataset, with the distributions that its actions were drawn from.
        estimates: of the dataset.
        steps: those that were taken; at least one has samples.
        log_weight: [N], logarithms of the samples' weights; None if the first minibatch's ratios are the weights.
        distribution: of the model.
        config: settings, with those of the loss as they were in this update.
    """
    log_ratio = torch.cat([step.log_ratio for step in steps])
    clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
    ratio = log_ratio.exp()
    first = next(step.log_ratio for step in steps if step.log_ratio.numel() > 0)
    spaced_rows = estimates.valid[:: -(-len(estimates.valid) // _MOST_DISTRIBUTIONS)]
    spaced = dataset.action_parameters.flatten(0, 1).index_select(0, spaced_rows)
    entropy = distribution.entropy(spaced).mean()
    positions = distribution.deviation_positions
    return torch.stack(
        (
            approximate_kls(log_ratio).mean(),
            ((ratio < clip.low) | (ratio > clip.high)).float().mean(),
            effective_sample_size(first if log_weight is None else log_weight),
            explained_variance(estimates.values, estimates.returns),
            first.expm1().abs().amax(0),
            entropy,
            spaced[:, list(positions)].exp().mean() if positions else torch.zeros_like(entropy),
        )
    )
