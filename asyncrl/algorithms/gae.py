"""Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
    """Estimate advantages of trajectories in which episodes end and begin.

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
