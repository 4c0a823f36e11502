"""V-trace: returns of the present policy from samples of an older one (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VtraceResult(NamedTuple):
    """All [T, C] float32; where `valid` is False the advantage is 0, the return is the value, the weight is 0.

    Attributes:
        advantages: estimates of A(s, a) under the present policy, without the weight of the action itself.
        returns: targets of the critic, the paper's v_s.
        weights: clipped importance weights of the actions, the paper's rho.
    """

    advantages: Tensor
    returns: Tensor
    weights: Tensor


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
    """Estimate values and advantages of the present policy on trajectories that an older one collected.

    Without lag the weights are 1 and the result is that of generalized advantage estimation; with `gae_lambda` 1 it is
    the paper's. Rows follow one another as in `asyncrl.algorithms.gae`: the chain is cut at either end of an episode,
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
