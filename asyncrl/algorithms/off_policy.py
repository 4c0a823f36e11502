"""What SAC, TD3 and DQN learn from, and what they need of the networks that they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.models.sac import SacActor, TwinCritic

SUM_OF_INPUTS = "sum of inputs"
"""A metric that is checked, because a rectifier may hide NaN, and is not a metric."""
CRITIC_METRICS = ("critic_loss", "q_mean", SUM_OF_INPUTS, "grad_norm_critic")
"""Names of the metrics that an update returns of SAC's or TD3's critics."""

OptimizerStep = Callable[..., Tensor]
"""From a loss and further metrics to the same numbers and the norm of the loss's gradient, `[F + 2]`.

It takes a step of a network down the gradient, unless one of the numbers is not finite.
"""


class Transitions(NamedTuple):
    """B transitions of n steps each, or fewer where an episode ends.

    Attributes:
        obs: [B, D] float32 or uint8, raw.
        action: [B, A] float32 or [B] int64, as the distribution produced it (before squashing).
        reward: [B] float32, discounted sum over the transition's steps.
        next_obs: [B, D], raw, after its last step.
        discount: [B] float32, weight of the value of `next_obs`: gamma ** steps, and 0 where the episode terminated.
        between_obs: [B, n - 1, D], raw, before the second and each later step; arbitrary beyond the return's last step.
        between_discount: [B, n - 1] float32, weight of the policy's entropy there: gamma ** k before step k + 1, and 0
            beyond the last step of the return.
        weight: [B] float32, of the transition's loss; 1 if all are drawn equally often.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    between_obs: Tensor
    between_discount: Tensor
    weight: Tensor

    def to(self, device: torch.device) -> Transitions:
        """The same transitions on `device`; fields that are there already are not copied."""
        return Transitions(*(tensor.to(device) for tensor in self))

    @property
    def later_obs(self) -> Tensor:
        """[n * B, D], the observations between, in the order of their steps, then the next ones."""
        return torch.cat((self.between_obs.transpose(0, 1).flatten(0, 1), self.next_obs))


class Steps:
    """A batch of B single steps, and what networks compute from its observations.

    Attributes:
        action, reward, discount, between_discount, weight: of the transitions.
        obs: normalized observations before the transitions.
        later: normalized observations after them; the last B are the next ones.
    """

    def __init__(
        self,
        batch: Transitions,
        later_obs: Tensor,
        model: SacActor,
        precision: Callable[[], torch.autocast],
        pair: Tensor | None = None,
    ) -> None:
        """Normalizes the observations.

        Args:
            batch: the transitions.
            later_obs: [N, D], raw rows of `later`.
            model: knows how observations are normalized.
            precision: a context in which networks compute.
            pair: [2], the critics that give the targets, and the policy follows the mean of all (REDQ, Chen et al.
                2021, arXiv:2101.05982, algorithm 1); None if all give them and the policy follows the smaller.
        """
        self.action, self.reward, self.discount, self.weight = batch.action, batch.reward, batch.discount, batch.weight
        self.between_discount = batch.between_discount
        self.obs, self.later = model.inputs_of(batch.obs), model.inputs_of(later_obs)
        self.precision = precision
        self._pair = pair

    def policy(self, actor: SacActor) -> Tensor:
        """The outputs `[B, P]` of a policy that is trained, at `obs`."""
        with self.precision():
            outputs: Tensor = actor(*self.obs)
            return outputs

    @torch.no_grad()
    def later_policy(self, actor: SacActor) -> Tensor:
        """The outputs `[N, P]` of a policy at `later`, without gradient."""
        with self.precision():
            outputs: Tensor = actor(*self.later)
            return outputs

    def critic_outputs(
        self, critic: TwinCritic, target: TwinCritic | None, action: Tensor, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `TwinCritic.predictions` returns at both observations.

        Of the critics for `action: [B, C]`, with gradient, and of the target critics for `next_action` at the next
        observations.
        """
        with self.precision():
            assert target is not None
            next_outputs = target.predictions(self.later.slice(-len(next_action)), next_action)
            return critic.predictions(self.obs, action), self.target_outputs(next_outputs)

    def target_outputs(self, outputs: Tensor) -> Tensor:
        """Outputs of the critics that give the targets, without gradient."""
        return outputs.detach() if self._pair is None else outputs.detach()[self._pair]

    def policy_values(self, critic: TwinCritic, action: Tensor) -> Tensor:
        """Values `[K, B, N]` for actions of the policy at `obs`; its loss takes the smallest of the K."""
        with self.precision():
            values = critic.values(self.obs, action)
        return values if self._pair is None else values.mean(0, keepdim=True)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over samples of `values: [..., B]`."""
        return values.mean(-1)

    def critic_figures(self, values: Tensor, reward: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean of `values: [..., B]`, and a number that is finite if all inputs and `reward: [B]` are."""
        sum_of_inputs = self.obs.floats.sum() + self.later.floats.sum()
        if reward is not None:  # the loss of an infinite return may be finite
            sum_of_inputs = sum_of_inputs + 0.0 * reward.sum()
        return values.detach().mean(), sum_of_inputs
