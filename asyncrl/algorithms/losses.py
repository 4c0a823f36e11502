"""Advantages and losses of on-policy algorithms. Every loss is to be minimized."""

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
        log_ratio: [B] float32, log-probability of the current policy minus that of the policy it is kept close to.
        advantages: [B] float32, perhaps weighted: a factor w >= 0 of A is one of min(r A, clip(r) A).
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


def advantage_sums(advantages: Tensor, num_parts: int, is_sample: Tensor | None = None) -> Tensor:
    """Count, sum and sum of squares of each part of the advantages, `[num_parts, 3] float64`; those of ranks add up.

    Args:
        advantages: [N] or [N, L].
        num_parts: minibatches, as `Tensor.tensor_split` makes them along the first dimension.
        is_sample: in the shape of the advantages, which of them count; all if not given.
    """
    numbers = advantages.double()
    if is_sample is None:
        counts = torch.ones_like(numbers)
    else:
        counts, numbers = is_sample.double(), numbers.where(is_sample, 0.0)
    rows = torch.stack((counts, numbers, numbers.square())).unsqueeze(-1).flatten(2)
    return torch.stack([part.sum((1, 2)) for part in rows.tensor_split(num_parts, dim=1)])


def normalize_advantages(advantages: Tensor, sums: Tensor) -> Tensor:
    """Shift and scale advantages `[N]` or `[N, L]` to mean 0 and deviation 1 in each part that `sums` are of."""
    mean, mean_square = sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
    std = (mean_square - mean.square()).clamp_(min=0.0).sqrt()
    size, num_larger = divmod(len(advantages), len(sums))
    sizes = torch.full((len(sums),), size, device=sums.device)
    sizes[:num_larger] += 1
    units = torch.stack((mean, std + _ADVANTAGE_EPS)).to(advantages.dtype)
    shift, scale = units.repeat_interleave(sizes, 1, output_size=len(advantages))
    column = (-1,) + (1,) * (advantages.dim() - 1)
    normalized: Tensor = (advantages - shift.view(column)) / scale.view(column)
    return normalized


def behaviour_weights(log_ratio: Tensor, cap: float) -> Tensor:
    """Weights of samples in decoupled PPO (Hilton et al. 2021, arXiv:2110.00641): probability ratios, at most `cap`.

    Args:
        log_ratio: [...] float32, log-probability of the policy before training minus that of the behaviour policy.
        cap: bounds the variance; 1 or more, so that samples of the same policy keep the weight 1.
    """
    return log_ratio.exp().clamp(max=cap)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """Share of `[N]` samples that weights leave: (sum w)^2 / (N sum w^2), between 1/N and 1 (Kish 1965)."""
    log_share: Tensor = 2.0 * log_weights.logsumexp(0) - (2.0 * log_weights).logsumexp(0)
    return (log_share.exp() / len(log_weights)).clamp(max=1.0)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(old || current) from samples of old: mean of (r - 1) - log r (Schulman 2020, joschu.net/blog/kl-approx)."""
    return (log_ratio.expm1() - log_ratio).mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var[returns - values] / Var[returns], both [N]; 0 where the returns do not vary."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1.0 - (returns - values).var(correction=0) / variance, torch.zeros_like(variance))


class GaeResult(NamedTuple):
    """Both [T, C] float32; where `valid` is False the advantage is 0 and the return is the value.

    Attributes:
        advantages: estimates of A(s, a).
        returns: advantages + values, the lambda-returns that the critic learns.
    """

    advantages: Tensor
    returns: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> GaeResult:
    """Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438) where episodes end and begin.

    The value of row t+1 is what follows row t, be it the next observation of the episode, the final one of a truncated
    episode (a row that is not valid), or the one after the last row. Only termination makes it 0. What comes after
    the end of an episode, of either kind, never reaches back across it.

    Args:
        rewards: [T, C] float32.
        values: [T+1, C] float32, in units of rewards.
        terminated: [T, C] bool, the episode reached an end of its own.
        truncated: [T, C] bool, the episode was cut off; the next row is its final observation.
        valid: [T, C] bool, False for rows without an action; what they hold is not read, but for `values`.
        gamma: discount factor.
        gae_lambda: weight of longer returns, 0 (one step) to 1 (Monte Carlo).
    """
    next_values = values[1:].masked_fill(terminated, 0.0)
    deltas = torch.where(valid, rewards + gamma * next_values - values[:-1], 0.0)
    decay = (valid & ~(terminated | truncated)).to(values.dtype).mul_(gamma * gae_lambda)
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    # One operation a row: this loop runs T times for each dataset.
    steps = zip(reversed(deltas.unbind()), reversed(decay.unbind()), reversed(advantages.unbind()), strict=True)
    for delta, weight, advantage in steps:
        following = torch.addcmul(delta, weight, following, out=advantage)
    return GaeResult(advantages, advantages + values[:-1])


class VtraceResult(NamedTuple):
    """All [T, C] float32; where `valid` is False the advantage is 0, the return is the value, the weight is 0.

    Attributes:
        advantages: estimates of A(s, a) under the present policy, without the weight of the action itself.
        returns: targets of the critic, the paper's v_s.
        weights: clipped importance weights of the actions, the paper's rho; None without V-trace.
    """

    advantages: Tensor
    returns: Tensor
    weights: Tensor | None


def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
    max_rho: float,
    max_c: float,
) -> VtraceResult:
    """V-trace: the present policy's values and advantages on an older one's trajectories (arXiv:1802.01561).

    Espeholt et al. 2018, "IMPALA".

    Without lag the weights are 1 and the result is that of generalized advantage estimation; with `gae_lambda` 1 it
    is the paper's. Rows follow one another as in `gae`: the chain is cut at either end of an episode,
    and only termination makes the next value 0. No gradient flows through any of it.

    Args:
        log_ratios: [T, C] float32, log-probability of each action now minus that when it was chosen.
        rewards: [T, C] float32.
        values: [T+1, C] float32, of the present critic, in units of rewards.
        terminated: [T, C] bool.
        truncated: [T, C] bool.
        valid: [T, C] bool, False for rows without an action.
        gamma: discount factor.
        gae_lambda: weight of longer returns; multiplies c.
        max_rho: where the weights of the temporal differences are clipped; it decides whose values are learned.
        max_c: where the weights of the trace are clipped; it decides how fast.
    """
    ratios = torch.where(valid, log_ratios, 0.0).exp()
    weights = torch.where(valid, ratios.clamp(max=max_rho), 0.0)
    next_values = values[1:].masked_fill(terminated, 0.0)
    deltas = torch.where(valid, rewards + gamma * next_values - values[:-1], 0.0)
    goes_on = (valid & ~(terminated | truncated)).to(values.dtype).mul_(gamma * gae_lambda)
    decay = goes_on * ratios.clamp(max=max_c)
    corrections = torch.zeros_like(values)
    for row in reversed(range(len(rewards))):
        torch.addcmul(weights[row] * deltas[row], decay[row], corrections[row + 1], out=corrections[row])
    advantages = torch.addcmul(deltas, goes_on, corrections[1:])
    return VtraceResult(advantages, corrections[:-1] + values[:-1], weights)
