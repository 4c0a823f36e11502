"""TD3: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv:1802.09477).

`Td3.update` is algorithm 1 of the paper. K is the number of critics. Every loss is minimized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import OptimizerStep, Steps
from asyncrl.config.schema import TrainConfig
from asyncrl.models.sac import TwinCritic
from asyncrl.models.td3 import DeterministicActor

ACTOR_METRICS = ("actor_loss", "grad_norm_actor")
"""Names of the policy's metrics in an update that trains it; the critics have SAC's."""


@dataclass(eq=False)
class Td3:
    """The update of critics, policy and target networks."""

    config: TrainConfig
    actor: DeterministicActor
    critic: TwinCritic
    target_actor: DeterministicActor
    target_critic: TwinCritic
    step_actor: OptimizerStep
    step_critic: OptimizerStep
    move_targets: Callable[[], None]

    def update(self, steps: Steps, noise: Tensor, trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        """One update (algorithm 1); returns metrics of the critics, and `ACTOR_METRICS` if it trains the policy.

        `noise: [B, A]` is standard normal. With `policy_delay` not every update trains the policy (section 5.2).
        """
        # Targets: an action beside that of the target policy, valued by the smaller target critic.
        next_action = self.smoothed(steps.later_policy(self.target_actor).tanh(), noise)

        # Critics: a step towards the targets.
        with torch.enable_grad():
            action = steps.action.tanh()
            outputs, next_outputs = steps.critic_outputs(self.critic, self.target_critic, action, next_action)
            values, next_values = outputs.squeeze(-1), next_outputs.squeeze(-1)
            target = clipped_double_target(steps.reward, steps.discount, next_values)
            loss = 0.5 * steps.mean((values - target).square()).sum()
        critic_figures = self.step_critic(loss, *steps.critic_figures(values))
        if not trains_actor:
            return critic_figures, None

        # Policy: a step towards a larger value of the first critic (Silver et al. 2014).
        with torch.enable_grad():
            action = steps.policy(self.actor).tanh()
            loss = -steps.mean(steps.policy_values(self.critic, action)[0, :, 0])
        actor_figures = self.step_actor(loss)

        # Target networks follow policy and critics.
        self.move_targets()
        return critic_figures, actor_figures

    def smoothed(self, action: Tensor, noise: Tensor) -> Tensor:
        """`smoothed_action`, with the sizes of the settings."""
        return smoothed_action(action, noise, self.config.target_policy_noise, self.config.target_noise_clip)


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
