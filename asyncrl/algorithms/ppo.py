"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347).

samples (advantages in) --minibatches--> take_step: ppo_loss, gradient, Adam --KL stop--> next pass --> metrics

`update` is the loop of every algorithm that learns from trajectories; `ppo_loss` is what makes it PPO. The learner
(`asyncrl.learner.on_policy`) prepares the samples, gives `take_step`, and adapts the learning rate between steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.losses import (
    LearningRate,
    LossMetrics,
    Mean,
    Progress,
    Ranks,
    Samples,
    Step,
    TakeStep,
    advantage_sums,
    approximate_kls,
    effective_sample_size,
    needs_kl,
    normalize_advantages,
    value_error,
    were_taken,
)
from asyncrl.buffers.pinning import to_device
from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import ActionDistribution


def update(
    samples: Samples,
    take_step: TakeStep,
    learning_rate: LearningRate,
    config: TrainConfig,
    generator: torch.Generator,
    ranks: Ranks,
    recompute: Callable[[], Samples],
    start_pass: Callable[[Sequence[Samples]], None] | None = None,
) -> Iterator[Progress]:
    """Trains `num_epochs` passes over a dataset, fewer if the policy moves too far in one; the caller may stop it.

    Args:
        samples: the dataset, with advantages.
        take_step: takes one optimizer step on a minibatch at a learning rate.
        learning_rate: the rate of the next step.
        config: numbers of passes and minibatches, normalization, and `target_kl`.
        generator: on the CPU, draws the order of samples.
        ranks: the learners that make the same steps.
        recompute: with `recompute_advantages`, the samples with advantages and returns of the present critic.
        start_pass: gets the minibatches of a pass before its first step.

    Yields:
        The progress of the update, after each step.
    """
    num_done, minibatches = 0, Minibatches(samples, config, generator, ranks)
    for epoch in range(1, config.num_epochs + 1):
        if epoch > 1 and config.recompute_advantages:
            minibatches = Minibatches(recompute(), config, generator, ranks)
        batches = minibatches.draw()
        if start_pass is not None:
            start_pass(batches)
        steps: list[Step] = []
        for batch in batches:
            steps.append(Step(*take_step(batch, learning_rate.value)))
            num_done += 1
            ends_pass = len(steps) == len(batches)
            is_last = ends_pass and (epoch == config.num_epochs or exceeds_target_kl(steps, config.target_kl, ranks))
            yield Progress(num_done, len(batches) * config.num_epochs, ends_pass, is_last, steps)
        if is_last:
            break


class Minibatches:
    """Draws the minibatches of the passes over a dataset, `num_batches_per_epoch` each, in every rank.

    All passes share the memory of the minibatches.
    """

    def __init__(self, samples: Samples, config: TrainConfig, generator: torch.Generator, ranks: Ranks) -> None:
        """Allocates the minibatches; arguments as of `update`."""
        self._samples, self._config, self._generator, self._ranks = samples, config, generator, ranks
        num_batches = config.num_batches_per_epoch
        self._num_batches = min(num_batches, len(samples.floats)) if ranks.num_ranks == 1 else num_batches
        fields = [None if field is None else torch.empty_like(field) for field in samples]
        room = Samples._make(fields) if config.shuffle_minibatches else samples
        self._room = room._replace(advantage=torch.empty_like(samples.advantage))
        self._batches = self._room._replace(weight=None).minibatches(self._num_batches)

    def draw(self) -> list[Samples]:
        """The minibatches of the next pass, which overwrite those before.

        Advantages are normalized over the samples of all ranks, and weighted after that: a mean subtracted from
        weighted ones would train on actions whose weight is 0.
        """
        config, samples, room = self._config, self._samples, self._room
        if config.shuffle_minibatches:
            order, device = torch.randperm(len(samples.floats), generator=self._generator), samples.floats.device
            order = order if device.type == "cpu" else to_device([order], device)[0]
            for field, shuffled in zip(samples, room, strict=True):
                if field is not None:
                    torch.index_select(field, 0, order, out=shuffled)
        else:
            room.advantage.copy_(samples.advantage)
        if config.normalize_advantage:
            sums = advantage_sums(room.advantage, self._num_batches, room.valid)
            if self._ranks.num_ranks > 1:
                self._ranks.sum(sums)
            if config.normalize_advantage_over == "dataset":
                sums = sums.sum(0).expand_as(sums)
            room.advantage.copy_(normalize_advantages(room.advantage, sums))
        if room.weight is not None:
            room.advantage.mul_(room.weight)
        return self._batches


def ppo_loss(
    parameters: Tensor, values: Tensor, batch: Samples, distribution: ActionDistribution, config: TrainConfig
) -> LossMetrics:
    """The loss of a minibatch (equation 9); see `Algorithm.loss`.

    The old policy is that of `batch.log_prob`: the one that acted or, with the decoupled objective, the one before
    training, where advantages are weighted by how far it is from the one that acted.
    """
    log_prob = distribution.log_prob(parameters, batch.action)
    clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
    policy_loss = ppo_policy_loss(log_prob - batch.log_prob, batch.advantage, clip, batch.mean)
    value_loss = config.value_loss_coeff * value_error(values, batch, config)
    loss = policy_loss + value_loss
    entropy_loss = kl_loss = kl = torch.zeros((), device=parameters.device)
    if config.entropy_loss_coeff > 0.0:
        entropy_loss = -config.entropy_loss_coeff * batch.mean(distribution.entropy(parameters))
        loss = loss + entropy_loss
    if needs_kl(config):
        kl = batch.mean(distribution.kl(batch.action_parameters, parameters))
    if config.kl_loss_coeff > 0.0:
        kl_loss = config.kl_loss_coeff * kl
        loss = loss + kl_loss
    return LossMetrics(loss, policy_loss, value_loss, entropy_loss, kl_loss, kl, log_prob - batch.log_prob)


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


def exceeds_target_kl(steps: Sequence[Step], target_kl: float | None, ranks: Ranks) -> bool:
    """Whether the mean KL divergence of a pass's minibatches is above `target_kl`; the same answer in all ranks."""
    if target_kl is None:
        return False
    with_samples = [step for step in steps if step.log_ratio.numel() > 0]  # other ranks may have all samples
    mean, num_samples = 0.0, 0
    if with_samples:
        sizes = [step.log_ratio.numel() for step in with_samples]
        kls = approximate_kls(torch.cat([step.log_ratio for step in with_samples]))
        numbers = torch.cat((kls, were_taken(with_samples).to(kls.dtype))).cpu().numpy()  # the host reads once
        num_samples = len(kls)
        of_steps = np.add.reduceat(numbers[:num_samples], [0, *itertools.accumulate(sizes[:-1])]) / sizes
        taken = of_steps[numbers[num_samples:] > 0.0]
        mean = float(taken.mean()) if len(taken) > 0 else 0.0
    if ranks.num_ranks > 1:
        average = torch.tensor(mean, dtype=torch.float32, device=steps[0].step_metrics.device)
        ranks.average([average], num_samples)
        mean = float(average)
    return not mean <= target_kl  # NaN ends the passes too


def ratio_metrics(steps: Sequence[Step], log_weight: Tensor | None, config: TrainConfig) -> dict[str, Tensor]:
    """What the probability ratios of the steps that were taken say, as scalars; at least one step has samples.

    Args:
        steps: of all passes over a dataset.
        log_weight: [N], logarithms of the samples' weights; None if the first minibatch's ratios are the weights.
        config: the bounds of the ratio.
    """
    log_ratio = torch.cat([step.log_ratio for step in steps])
    first = next(step.log_ratio for step in steps if step.log_ratio.numel() > 0)
    clip, ratio = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode), log_ratio.exp()
    return {
        "approx_kl": approximate_kls(log_ratio).mean(),
        "clip_fraction": ((ratio < clip.low) | (ratio > clip.high)).float().mean(),
        "effective_sample_size": effective_sample_size(first if log_weight is None else log_weight),
        "max_ratio_deviation_first_batch": first.expm1().abs().amax(0),
    }
