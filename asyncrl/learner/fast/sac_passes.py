"""`Sac.update` without autograd: losses with their gradients in closed form, and hand-written passes.

It is for perceptrons, two critics with target critics, and actions that are either continuous or one choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.algorithms.sac import Sac, SquashedSample, draw_squashed, with_entropies
from asyncrl.learner.trained_network import TargetNetwork, TrainedNetwork
from asyncrl.models.mlp_pass import MlpPass


class SacPasses:
    """Makes the updates of a `Sac`. The networks have `layers`."""

    def __init__(
        self, sac: Sac, actor: TrainedNetwork, critic: TrainedNetwork, target: TargetNetwork, dtype: torch.dtype
    ) -> None:
        """Takes the networks of `sac`; matrix products have `dtype`."""
        self._sac, self._model = sac, sac.actor
        self._actor, self._critic, self._target = actor, critic, target
        self._actor_pass, self._critic_pass = (MlpPass(sac.config.nonlinearity) for _ in range(2))
        self._dtype = dtype
        self._inputs = torch.empty(0)

    def update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        """One update from the fields of `Transitions`, and noise as in `Sac.update`."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size, num_between = batch.between_discount.shape
        ent_coef = self._sac.log_ent_coef.exp()[0]
        # All observations: the first ones, those between in the order of their steps, the next ones.
        shape = ((2 + num_between) * size, self._model.observation_size)
        if self._inputs.shape != shape:
            self._inputs = self._model.statistics.new_empty(shape)
        self._inputs[:size].copy_(batch.obs)
        self._inputs[size:-size].copy_(batch.between_obs.transpose(0, 1).flatten(0, 1))
        self._inputs[-size:].copy_(batch.next_obs)
        obs = self._model.normalize_obs(self._inputs, out=self._inputs).to(self._dtype)
        # The policy at the first observations is needed only for its own update.
        rows = obs if trains_actor else obs[size:]
        parameters = self._model.parameters_of(self._actor_pass.forward(self._actor.layers, rows)[0])
        if self._model.is_gaussian:
            return self._update_continuous(batch, obs, parameters, noise, ent_coef, trains_actor)
        return self._update_discrete(batch, obs, parameters, ent_coef, trains_actor)

    def _update_continuous(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, noise: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> tuple[Tensor, Tensor | None]:
        size, num_obs = batch.reward.shape[0], self._model.observation_size
        sample = draw_squashed(parameters, noise)
        inputs = torch.cat((obs[-size:], sample.action[-size:].to(obs.dtype)), dim=1)
        next_values = self._critic_pass.forward(self._target.layers, inputs).squeeze(-1)
        next_value = next_values.amin(0) - ent_coef * sample.log_prob[-size:]  # equation 3
        reward = with_entropies(batch.reward, sample.log_prob, batch.between_discount, ent_coef)
        target = self._sac.target(reward, batch.discount, next_value)
        inputs = torch.cat((obs[:size], batch.action.tanh().to(obs.dtype)), dim=1)
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = critic_loss(values, target)
        critic_figures = self._step_critic(loss, loss.gradient.unsqueeze(-1), values)
        if not trains_actor:
            return critic_figures, None
        own = SquashedSample(*(field[:size] for field in sample))
        inputs[:, num_obs:] = own.action
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = actor_loss(values, own.log_prob, ent_coef)
        columns = slice(num_obs, None)
        by_action = self._critic_pass.backward(self._critic.layers, loss.gradient.unsqueeze(-1), inputs=columns)
        assert by_action is not None
        gradient = actor_gradient(own, by_action.sum(0, dtype=parameters.dtype), ent_coef)
        return critic_figures, self._step_actor(loss.value, parameters[:size], gradient, -own.log_prob.mean(), ent_coef)

    def _update_discrete(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> tuple[Tensor, Tensor | None]:
        size, choice = batch.reward.shape[0], batch.action.expand(2, -1).unsqueeze(-1)
        next_values = self._critic_pass.forward(self._target.layers, obs[-size:])
        next_log_probs, neg_entropy = parameters[-size:], -self._model.distribution.entropy(parameters)
        next_value = (next_log_probs.exp() * (next_values.amin(0) - ent_coef * next_log_probs)).sum(-1)
        reward = with_entropies(batch.reward, neg_entropy, batch.between_discount, ent_coef)
        target = self._sac.target(reward, batch.discount, next_value)
        all_values = self._critic_pass.forward(self._critic.layers, obs[:size])
        values = all_values.gather(-1, choice).squeeze(-1)
        loss = critic_loss(values, target)
        gradient = torch.zeros_like(all_values).scatter_(-1, choice, loss.gradient.unsqueeze(-1))
        critic_figures = self._step_critic(loss, gradient, values)
        if not trains_actor:
            return critic_figures, None
        log_probs = parameters[:size]
        loss = choices_actor_loss(log_probs, self._critic_pass.forward(self._critic.layers, obs[:size]), ent_coef)
        entropy = self._model.distribution.entropy(log_probs).mean()
        return critic_figures, self._step_actor(loss.value, log_probs, loss.gradient, entropy, ent_coef)

    def _step_critic(self, loss: Loss, gradient: Tensor, values: Tensor) -> Tensor:
        """Steps the critics down `gradient` of their outputs, and moves the target critics; returns metrics."""
        self._critic_pass.backward(self._critic.layers, gradient, self._critic.gradients)
        step_metrics = self._critic.step(torch.stack((loss.value, values.mean(), self._inputs.sum())))
        self._sac.move_targets()
        return step_metrics

    def _step_actor(
        self, loss: Tensor, parameters: Tensor, gradient: Tensor, entropy: Tensor, ent_coef: Tensor
    ) -> Tensor:
        """Steps the policy down `gradient` of its parameters, and the entropy coefficient; returns metrics."""
        outputs_gradient = self._model.outputs_gradient(parameters, gradient).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, outputs_gradient, self._actor.gradients)
        ent_coef_loss = self._sac.adapt_ent_coef(entropy, None)
        return self._actor.step(torch.stack((loss, ent_coef, ent_coef_loss, entropy)))


class Loss(NamedTuple):
    """A loss (a scalar) and its gradient with respect to the function's first argument."""

    value: Tensor
    gradient: Tensor


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
    """Gradient `[B, 2A]` of the actor loss with respect to means and log standard deviations (equation 10).

    With u = mean + standard deviation, d log pi / du is 2 tanh(u), and the direct derivative by a log standard
    deviation is -1.

    Args:
        sample: the actions.
        action_gradient: [B, A], of the loss with respect to `sample.action` through the critics.
        ent_coef: scalar alpha.
    """
    weight = ent_coef / sample.log_prob.shape[0]
    action = sample.action
    slope = torch.addcmul(action_gradient, action * action, action_gradient, value=-1.0)
    by_mean = slope.addcmul_(action, 2.0 * weight)
    return torch.cat((by_mean, by_mean * sample.stddev - weight), dim=-1)


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
