"""Losses of SAC over minibatches; those of the hand-written passes with their gradients. Every loss is minimized.

Continuous actions: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905). Discrete
ones: Christodoulou 2019 (arXiv:1910.07207), where expectations over actions are sums. K is the number of critics, M
that of bins, if they predict distributions over returns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.models.distributions import HALF_LOG_TWO_PI, LOG_TWO


class Loss(NamedTuple):
    """A loss (a scalar) and its gradient with respect to the function's first argument."""

    value: Tensor
    gradient: Tensor


class SquashedSample(NamedTuple):
    """Actions drawn by reparameterization.

    Attributes:
        action: [B, A] in [-1, 1], tanh of a normal sample.
        log_prob: [B], density of `action`.
        deviation: [B, A], distance of the sample from its mean, before tanh.
    """

    action: Tensor
    log_prob: Tensor
    deviation: Tensor


def draw_squashed(parameters: Tensor, noise: Tensor) -> SquashedSample:
    """Actions from noise (appendix C, with log(1 - tanh^2) in a form that does not overflow).

    Args:
        parameters: [B, 2A], means and log-deviations.
        noise: [B, A], standard normal.
    """
    mean, log_std = parameters.chunk(2, dim=-1)
    deviation = log_std.exp() * noise
    raw = mean + deviation
    # -log_prob, term by term: noise^2 / 2 + log_std + 2 (log 2 - raw - softplus(-2 raw)), and constants
    terms = torch.addcmul(log_std, noise, noise, value=0.5).sub_(raw, alpha=2.0)
    terms.sub_(torch.nn.functional.softplus(raw * -2.0), alpha=2.0)
    constant = noise.shape[-1] * (HALF_LOG_TWO_PI + 2.0 * LOG_TWO)
    return SquashedSample(raw.tanh(), torch.rsub(terms.sum(-1), -constant), deviation)


def soft_value(values: Tensor, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
    """Soft state value `[B]` (equation 3, with the smaller of the critics, section 6).

    Args:
        values: [K, B], of the target critics for an action of the policy.
        log_prob: [B], of that action.
        ent_coef: scalar alpha.
    """
    return values.amin(0) - ent_coef * log_prob


def soft_value_of_choices(values: Tensor, log_probs: Tensor, ent_coef: Tensor) -> Tensor:
    """Soft state value `[B]` of discrete actions (Christodoulou, equation 10).

    Args:
        values: [K, B, n], of the target critics for all actions.
        log_probs: [B, n].
        ent_coef: scalar alpha.
    """
    return (log_probs.exp() * (values.amin(0) - ent_coef * log_probs)).sum(-1)


def soft_value_of_parts(
    values: Tensor, log_probs: Tensor, log_prob: Tensor, ent_coef: Tensor, num_groups: int = 1
) -> Tensor:
    """Soft state value `[B]` of actions with continuous dimensions and choices.

    The expectation over choices is exact, as in `soft_value_of_choices`; over continuous actions it is one sample, as
    in `soft_value`. The negative mean is the loss of the policy (equation 9, and Christodoulou, equation 12).

    With choices in several groups both the value and the entropy are sums over groups. Only the sum of a critic is
    trained, not how the critic shares it out among the groups, so the smaller critic is the one with the smaller sum.

    Args:
        values: [K, B, N], of all combinations of choices, with the continuous numbers that were drawn.
        log_probs: [B, N], of the combinations; in each group they add up to 1.
        log_prob: [B], of the continuous numbers.
        ent_coef: scalar alpha.
        num_groups: groups of choices.
    """
    probs = log_probs.exp()
    if num_groups == 1:
        return (probs * (values.amin(0) - ent_coef * log_probs)).sum(-1) - ent_coef * log_prob
    return (probs * values).sum(-1).amin(0) - ent_coef * ((probs * log_probs).sum(-1) + log_prob)


def soft_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Targets of the critics (equation 2), all `[B]`; `discount` is 0 where the episode terminated."""
    return torch.addcmul(reward, discount, next_value)


def entropy_bonus(log_prob: Tensor, discount: Tensor, ent_coef: Tensor) -> Tensor:
    """Entropy terms of an n-step reward `[B]`: the return has one after each step (equation 2).

    Args:
        log_prob: [B, n - 1], of an action of the policy at the second and each later step's observation; of discrete
            actions the negative entropy.
        discount: [B, n - 1], 0 where there is no such step.
        ent_coef: scalar alpha.
    """
    return -ent_coef * (discount * log_prob).sum(1)


def next_distribution(bin_log_probs: Tensor, support: Tensor, log_probs: Tensor) -> Tensor:
    """Probabilities `[B, M]` of returns after the next observations: `soft_value_of_parts`, without the entropy.

    For each combination of choices it is the distribution with the smaller mean, and over combinations their mixture.

    Args:
        bin_log_probs: [K, B, N, M], of the target critics for an action of the policy.
        support: [M].
        log_probs: [B, N], of the combinations in one group.
    """
    smaller = (bin_log_probs.exp() @ support).argmin(0, keepdim=True)
    index = smaller.unsqueeze(-1).expand(1, *bin_log_probs.shape[1:])
    distribution = bin_log_probs.gather(0, index).squeeze(0).exp()
    return (log_probs.exp().unsqueeze(-1) * distribution).sum(1)


def project_distribution(probabilities: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """The distribution `[B, M]` over bins that is nearest to one over other returns.

    Bellemare et al. 2017 (arXiv:1707.06887), equation 7: each return is clipped to the range of the bins, and its
    probability is shared by the two bins beside it, in proportion to their nearness.

    Args:
        probabilities: [B, M], of `returns: [B, M]`.
        returns: as the first argument.
        support: [M], at equal distances, in rising order.
    """
    low, step = support[0], support[1] - support[0]
    place = (torch.minimum(torch.maximum(returns, low), support[-1]) - low) / step
    lower = place.nan_to_num().floor().clamp(0, len(support) - 2)
    upper_share = place - lower
    index = lower.to(torch.int64)
    projected = torch.zeros_like(probabilities).scatter_add_(1, index, probabilities * (1.0 - upper_share))
    return projected.scatter_add_(1, index + 1, probabilities * upper_share)


def distribution_loss(bin_log_probs: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy from `target: [B, M]` to the critics' `[K, B, M]`, a mean over B and a sum over critics."""
    return -(target * bin_log_probs).sum(-1).mean(1).sum()


def critic_loss(values: Tensor, target: Tensor) -> Loss:
    """Half of the mean squared error, summed over critics (equation 5); gradient `[K, B]` of `values: [K, B]`."""
    error = values - target
    gradient = error / target.shape[0]
    return Loss(0.5 * torch.dot(gradient.flatten(), error.flatten()), gradient)


def actor_loss(values: Tensor, log_prob: Tensor, ent_coef: Tensor) -> Loss:
    """E[alpha log pi - min Q] (equation 9); gradient `[K, B]` of `values`; `actor_gradient` has that of the policy.

    Args:
        values: [K, B], of the critics for an action of the policy.
        log_prob: [B], of that action.
        ent_coef: scalar alpha.
    """
    smallest, which = values.min(0)
    gradient = torch.zeros_like(values).scatter_(0, which.unsqueeze(0), -1.0 / log_prob.shape[0])
    return Loss((ent_coef * log_prob - smallest).mean(), gradient)


def actor_gradient(sample: SquashedSample, action_gradient: Tensor, ent_coef: Tensor) -> Tensor:
    """Gradient `[B, 2A]` of the actor loss with respect to means and log-deviations (equation 10).

    With u = mean + deviation, d log pi / du is 2 tanh(u), and the direct derivative by a log-deviation is -1.

    Args:
        sample: the actions.
        action_gradient: [B, A], of the loss with respect to `sample.action` through the critics.
        ent_coef: scalar alpha.
    """
    weight = ent_coef / sample.log_prob.shape[0]
    action = sample.action
    slope = torch.addcmul(action_gradient, action * action, action_gradient, value=-1.0)
    by_mean = slope.addcmul_(action, 2.0 * weight)
    return torch.cat((by_mean, by_mean * sample.deviation - weight), dim=-1)


def choices_actor_loss(log_probs: Tensor, values: Tensor, ent_coef: Tensor) -> Loss:
    """E[sum of pi (alpha log pi - min Q)] (Christodoulou, equation 12); gradient `[B, n]` of `log_probs: [B, n]`.

    Args:
        log_probs: [B, n].
        values: [K, B, n], of the critics for all actions.
        ent_coef: scalar alpha.
    """
    weights = log_probs.exp() / log_probs.shape[0]
    cost = ent_coef * log_probs - values.amin(0)
    return Loss((weights * cost).sum(), weights * (cost + ent_coef))


def ent_coef_loss(log_ent_coef: Tensor, entropy: Tensor, target_entropy: Tensor | float) -> Loss:
    """Adapts the entropy coefficient until the policy's entropy is the target (equation 18, on log alpha).

    On log alpha, as in the authors' code, the coefficient remains positive and its steps do not shrink with it.

    Args:
        log_ent_coef: scalar log alpha.
        entropy: scalar, the policy's mean entropy in nats.
        target_entropy: in nats.
    """
    gradient = entropy - target_entropy
    return Loss(log_ent_coef * gradient, gradient)
