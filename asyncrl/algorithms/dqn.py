"""DQN: Mnih et al. 2015, "Human-level control through deep reinforcement learning".

`Dqn.update` is the inner loop of algorithm 1, with the targets of double DQN (van Hasselt et al. 2016,
arXiv:1509.06461). n is the number of choices. The loss is minimized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from asyncrl.algorithms.off_policy import SUM_OF_INPUTS, OptimizerStep, Steps
from asyncrl.config.schema import TrainConfig
from asyncrl.models.dqn import QNetwork, best_choice

STEP_METRICS = ("loss", "q_mean", SUM_OF_INPUTS, "grad_norm")
"""Names of the metrics that an update returns."""


@dataclass(eq=False)
class Dqn:
    """The update of the network and its target network."""

    config: TrainConfig
    model: QNetwork
    target_model: QNetwork
    step_model: OptimizerStep
    move_target: Callable[[], None]

    def update(self, steps: Steps) -> tuple[Tensor, ...]:
        """One update; returns `STEP_METRICS`, and the errors `[B]` that prioritized replay needs."""
        # Targets: the network chooses the next action, the target network values it.
        with steps.precision():
            next_values, target_values = self.model.values(steps.later), self.target_model.values(steps.later)
        mask = self.model.mask_of(steps.later.floats)
        target = double_target(steps.reward, steps.discount, next_values, target_values, mask)

        # Network: a step towards the targets.
        with torch.enable_grad():
            with steps.precision():
                all_values = self.model.values(steps.obs)
            values = all_values.gather(-1, steps.action.unsqueeze(-1)).squeeze(-1)
            loss = dqn_loss(values, target, steps.weight)
        step_metrics = self.step_model(loss, *steps.critic_figures(values))

        # The target network follows.
        self.move_target()
        return self.results(step_metrics, values.detach(), target)

    def results(self, step_metrics: Tensor, values: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """The metrics, and the absolute errors `[B]` if they are priorities."""
        return (step_metrics, (values - target).abs()) if self.config.prioritized_replay else (step_metrics,)


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


def exploration_rate(config: TrainConfig, env_steps: int) -> float:
    """The probability of a choice at random after so many environment steps: it falls linearly, then stays."""
    last = config.exploration_fraction * config.train_for_env_steps
    share = min(1.0, env_steps / last) if last > 0 else 1.0
    return config.exploration_initial_eps + share * (config.exploration_final_eps - config.exploration_initial_eps)
