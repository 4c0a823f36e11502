"""Soft actor-critic: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905).

`Sac.update` is algorithm 1 of the paper. Actions have continuous dimensions, choices, or both: the expectation over
choices is exact, a sum (Christodoulou 2019, arXiv:1910.07207); over continuous actions it is one sample. K is the
number of critics, C that of continuous dimensions, N that of combinations of choices, 1 without choices. Every loss is
minimized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from asyncrl.algorithms.off_policy import OptimizerStep, Steps
from asyncrl.config.schema import TrainConfig
from asyncrl.models.distributions import HALF_LOG_TWO_PI, LOG_TWO
from asyncrl.models.sac import SacActor, TwinCritic

ACTOR_METRICS = ("actor_loss", "ent_coef", "ent_coef_loss", "entropy", "grad_norm_actor")
"""Names of the metrics that an update returns of the policy if that was trained; `CRITIC_METRICS` come first."""


@dataclass(eq=False)
class Sac:
    """The update of critics, target critics, policy and entropy coefficient.

    Attributes:
        step_actor: steps the policy, and the entropy coefficient along `ent_coef_gradient: [1]`.
        log_ent_coef: [1], log alpha.
        move_targets: moves the target critics towards the critics, if there are any.
    """

    config: TrainConfig
    actor: SacActor
    critic: TwinCritic
    target_critic: TwinCritic | None
    step_actor: OptimizerStep
    step_critic: OptimizerStep
    move_targets: Callable[[], None]
    log_ent_coef: Tensor
    ent_coef_gradient: Tensor

    def __post_init__(self) -> None:
        self.parts = self.actor.parts.to(self.log_ent_coef.device)  # continuous dimensions and choices of an action

    def update(self, steps: Steps, noise: Tensor, trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        """One update (algorithm 1); returns `CRITIC_METRICS`, and `ACTOR_METRICS` if it trains the policy.

        `noise: [N, C]` is standard normal: the first B rows are for the policy's loss, the last ones for `steps.later`.
        """
        size, ent_coef = len(steps.reward), self.log_ent_coef.exp()[0]

        # Actions of the policy after the transitions. An n-step reward contains the entropies of the steps between.
        parameters = steps.later_policy(self.actor)
        later = self.sample(parameters, noise[-len(parameters) :])
        reward = with_entropies(steps.reward, later.neg_entropy, steps.between_discount, ent_coef)
        after = PolicySample(*(field[-size:] for field in later))

        # Critics: a step towards the reward and the soft value of the next observation (equations 5 and 6).
        with torch.enable_grad():
            action = self.parts.continuous_of(steps.action)
            outputs, next_outputs = steps.critic_outputs(self.critic, self.target_critic, action, after.action)
            loss, values = self.critic_loss(steps, outputs, next_outputs, reward, after, ent_coef)
        critic_figures = self.step_critic(loss, *steps.critic_figures(values, reward))

        # Target critics follow the critics.
        self.move_targets()
        if not trains_actor:
            return critic_figures, None

        # Policy: a step towards a larger soft value of the observation (equation 9).
        with torch.enable_grad():
            sample = self.sample(steps.policy(self.actor), noise[:size])
            loss = -steps.mean(self.soft_value(steps.policy_values(self.critic, sample.action), sample, ent_coef))

        # Entropy coefficient: a step that lowers it while the policy's entropy is above the target (equation 18).
        entropy = -steps.mean(sample.neg_entropy.detach())
        ent_coef_loss = self.adapt_ent_coef(entropy, steps)
        return critic_figures, self.step_actor(loss, ent_coef, ent_coef_loss, entropy)

    def sample(self, parameters: Tensor, noise: Tensor) -> PolicySample:
        """Actions of the policy from its outputs `[B, P]`."""
        sample = draw_squashed(self.parts.gaussian_of(parameters), noise)
        return PolicySample(sample.action, sample.log_prob, self.parts.log_probs_of(parameters))

    def critic_loss(
        self, steps: Steps, outputs: Tensor, next_outputs: Tensor, reward: Tensor, after: PolicySample, ent_coef: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Half of the mean squared error, summed over critics (equation 5), and the values `[K, B]` of the actions.

        Args:
            steps: the transitions.
            outputs: of the critics, for the actions.
            next_outputs: of the target critics, for `after`.
            reward: [B], with the entropies of the steps between.
            after: actions of the policy at the next observations.
            ent_coef: scalar alpha.
        """
        target = self.target(reward, steps.discount, self.soft_value(next_outputs, after, ent_coef))
        values = self.parts.chosen_values(outputs, steps.action)
        return 0.5 * steps.mean((values - target).square()).sum(), values

    def soft_value(self, values: Tensor, sample: PolicySample, ent_coef: Tensor) -> Tensor:
        """Soft value `[B]` of an observation (equation 3), by the smaller of `values: [K, B, N]` (section 6)."""
        return soft_value(values, sample.log_probs, sample.log_prob, ent_coef, self.parts.num_groups)

    def target(self, reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
        """Targets of the critics (equation 2), all `[B]`; `discount` is 0 where the episode terminated."""
        return torch.addcmul(reward, discount, next_value)

    def adapt_ent_coef(self, entropy: Tensor, steps: Steps | None) -> Tensor:
        """Writes the gradient of log alpha, along which its next step goes; returns the loss.

        On log alpha, as in the authors' code, the coefficient remains positive and its steps do not shrink with it.

        Args:
            entropy: scalar, the policy's mean entropy in nats.
            steps: observations with masks; None if observations have no masks.
        """
        if self.config.ent_coef != "auto":
            return torch.zeros_like(entropy)
        gradient = entropy - self.target_entropy(steps)
        self.ent_coef_gradient.copy_(gradient)
        return self.log_ent_coef[0] * gradient

    def target_entropy(self, steps: Steps | None) -> Tensor | float:
        """The entropy in nats that the coefficient aims at: half of the largest one of the choices that masks allow."""
        if self.config.target_entropy != "auto":
            return self.config.target_entropy
        of_continuous = self.config.target_entropy_per_dim * self.parts.num_continuous
        mask = None if steps is None else self.actor.mask_of(steps.obs.floats)
        if steps is None or mask is None:
            return of_continuous + 0.5 * self.parts.max_entropy
        return of_continuous + 0.5 * steps.mean(self.parts.max_entropy_of(mask))


class PolicySample(NamedTuple):
    """Actions of the policy: one sample of the continuous dimensions, and the distribution over choices.

    Attributes:
        action: [B, C] in [-1, 1].
        log_prob: [B], density of `action`.
        log_probs: [B, N], of the combinations of choices; in each group they add up to 1.
    """

    action: Tensor
    log_prob: Tensor
    log_probs: Tensor

    @property
    def neg_entropy(self) -> Tensor:
        """The negative entropy `[B]`."""
        return self.log_prob + (self.log_probs.exp() * self.log_probs).sum(-1)


class SquashedSample(NamedTuple):
    """Actions drawn by reparameterization.

    Attributes:
        action: [B, A] in [-1, 1], tanh of a normal sample.
        log_prob: [B], density of `action`.
        stddev: [B, A], distance of the sample from its mean, before tanh.
    """

    action: Tensor
    log_prob: Tensor
    stddev: Tensor


def draw_squashed(parameters: Tensor, noise: Tensor) -> SquashedSample:
    """Actions from noise (appendix C, with log(1 - tanh^2) in a form that does not overflow).

    Args:
        parameters: [B, 2A], means and log standard deviations.
        noise: [B, A], standard normal.
    """
    mean, log_std = parameters.chunk(2, dim=-1)
    stddev = log_std.exp() * noise
    raw = mean + stddev
    # -log_prob, term by term: noise^2 / 2 + log_std + 2 (log 2 - raw - softplus(-2 raw)), and constants
    terms = torch.addcmul(log_std, noise, noise, value=0.5).sub_(raw, alpha=2.0)
    terms.sub_(softplus(raw * -2.0), alpha=2.0)
    constant = noise.shape[-1] * (HALF_LOG_TWO_PI + 2.0 * LOG_TWO)
    return SquashedSample(raw.tanh(), torch.rsub(terms.sum(-1), -constant), stddev)


def soft_value(values: Tensor, log_probs: Tensor, log_prob: Tensor, ent_coef: Tensor, num_groups: int = 1) -> Tensor:
    """Soft state value `[B]` of actions with continuous dimensions and choices (Christodoulou, equation 10).

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


def with_entropies(reward: Tensor, neg_entropy: Tensor, between_discount: Tensor, ent_coef: Tensor) -> Tensor:
    """n-step rewards `[B]` with the entropies of the steps between: the return has one after each step (equation 2).

    Args:
        reward: [B], discounted sum over the steps.
        neg_entropy: of the policy; the last n * B are at the observations between, step by step, and the next ones.
        between_discount: [B, n - 1], 0 beyond the last step of the return.
        ent_coef: scalar alpha.
    """
    size, num_between = between_discount.shape
    if num_between == 0:
        return reward
    between = neg_entropy[-(num_between + 1) * size : -size].view(num_between, size).t()
    return reward + -ent_coef * (between_discount * between).sum(1)
