"""Targets and the policy's loss of TD3 over minibatches; the critics' loss is SAC's. Every loss is minimized.

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv:1802.09477). K is the
number of critics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algorithms.sac import Loss


def smoothed_action(action: Tensor, noise: Tensor, stddev: float, limit: float) -> Tensor:
    """Actions beside those of the target policy, so that values of neighbouring actions are alike (section 5.3).

    Args:
        action: [B, A] in [-1, 1], of the target policy.
        noise: [B, A], standard normal.
        stddev: of the added noise.
        limit: largest distance from `action`.

    Returns:
        [B, A] in [-1, 1].
    """
    return (action + (noise * stddev).clamp_(-limit, limit)).clamp_(-1.0, 1.0)


def clipped_double_target(reward: Tensor, discount: Tensor, values: Tensor) -> Tensor:
    """Targets of all critics `[B]`, by the smaller of the target critics (section 4.2).

    Args:
        reward: [B], of the transition.
        discount: [B], 0 where the episode terminated.
        values: [K, B], of the target critics for smoothed actions after the transition.
    """
    return torch.addcmul(reward, discount, values.amin(0))


def actor_loss(values: Tensor) -> Loss:
    """-E[Q] of the first critic's values `[B]` for actions of the policy (Silver et al. 2014); gradient `[B]`."""
    return Loss(-values.mean(), torch.full_like(values, -1.0 / len(values)))


def actor_gradient(action: Tensor, action_gradient: Tensor) -> Tensor:
    """Gradient `[B, A]` with respect to the policy's outputs, before tanh.

    Args:
        action: [B, A], tanh of the outputs.
        action_gradient: [B, A], with respect to `action`.
    """
    return torch.addcmul(action_gradient, action * action, action_gradient, value=-1.0)
