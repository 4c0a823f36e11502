"""Targets and loss of DQN over minibatches; n is the number of choices. The loss is minimized.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; double: van Hasselt et al. 2016
(arXiv:1509.06461).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from asyncrl.models.dqn import best_choice


def double_target(
    reward: Tensor, discount: Tensor, values: Tensor, target_values: Tensor, mask: Tensor | None = None
) -> Tensor:
    """What the values of the chosen actions should be, `[B]`.

    The trained network chooses the next action and the target network says what it is worth, so that errors of one
    are not preferred because they are large (van Hasselt et al., equation 4).

    Args:
        reward: [B], of the transition.
        discount: [B], 0 where the episode terminated.
        values: [B, n], of the trained network, after the transition.
        target_values: [B, n], of the target network, likewise.
        mask: [B, n], of the choices after the transition, as in `epsilon_greedy`.
    """
    chosen = best_choice(values, mask).unsqueeze(-1)
    return torch.addcmul(reward, discount, target_values.gather(-1, chosen).squeeze(-1))


def dqn_loss(values: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The mean Huber loss of the chosen actions' values: the error, squared where it is below 1 (Mnih et al.).

    Args:
        values: [B].
        target: [B].
        weight: [B], of each loss, as Schaul et al. 2016 (arXiv:1511.05952) correct draws by priority.
    """
    return (weight * smooth_l1_loss(values, target, reduction="none")).mean()
