"""`Td3.update` without autograd, for perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import Transitions
from asyncrl.algorithms.td3 import Td3, clipped_double_target
from asyncrl.learner.fast.sac_passes import Loss, critic_loss
from asyncrl.learner.trained_network import TargetNetwork, TrainedNetwork
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.stacked_mlp import StackedLayer


class Td3Passes:
    """Makes the updates of a `Td3`. The networks have `layers`."""

    def __init__(
        self,
        td3: Td3,
        actor: TrainedNetwork,
        critic: TrainedNetwork,
        target_actor: TargetNetwork,
        target_critic: TargetNetwork,
        dtype: torch.dtype,
    ) -> None:
        """Takes the networks of `td3`; matrix products have `dtype`."""
        self._td3, self._model = td3, td3.actor
        self._actor, self._critic = actor, critic
        self._target_actor, self._target_critic = target_actor, target_critic
        self._actor_pass, self._critic_pass, self._first_pass = (MlpPass(td3.config.nonlinearity) for _ in range(3))
        # The policy's loss needs the first critic only.
        self._first_layers = [_first_network(layer) for layer in critic.layers]
        self._dtype = dtype

    def update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        """One update from the fields of `Transitions`, and noise as in `Td3.update`."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size, num_obs = len(batch.reward), self._model.observation_size
        rows = torch.cat((batch.obs, batch.next_obs)).to(self._model.statistics.dtype)
        normalized = self._model.normalize_obs(rows, out=rows)
        obs = normalized.to(self._dtype)
        later = obs[size:]
        next_action = self._actor_pass.forward(self._target_actor.layers, later)[0].tanh()
        next_action = self._td3.smoothed(next_action, noise)
        both = torch.cat((later, next_action.to(obs.dtype)), dim=1)
        next_values = self._critic_pass.forward(self._target_critic.layers, both).squeeze(-1)
        target = clipped_double_target(batch.reward, batch.discount, next_values)
        both = torch.cat((obs[:size], batch.action.tanh().to(obs.dtype)), dim=1)
        values = self._critic_pass.forward(self._critic.layers, both).squeeze(-1)
        loss = critic_loss(values, target)
        self._critic_pass.backward(self._critic.layers, loss.gradient.unsqueeze(-1), self._critic.gradients)
        critic_figures = self._critic.step(torch.stack((loss.value, values.mean(), normalized.sum())))
        if not trains_actor:
            return critic_figures, None
        action = self._actor_pass.forward(self._actor.layers, obs[:size])[0].tanh()
        both[:, num_obs:] = action
        loss = actor_loss(self._first_pass.forward(self._first_layers, both)[0, :, 0])
        by_value, columns = loss.gradient.view(1, size, 1), slice(num_obs, None)
        by_action = self._first_pass.backward(self._first_layers, by_value, inputs=columns)
        assert by_action is not None
        by_output = actor_gradient(action, by_action[0].to(action.dtype)).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, by_output, self._actor.gradients)
        actor_figures = self._actor.step(loss.value.unsqueeze(0))
        self._td3.move_targets()
        return critic_figures, actor_figures


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


def _first_network(layer: StackedLayer) -> StackedLayer:
    """The layer of the first of several networks, as views."""
    return StackedLayer(*(None if tensor is None else tensor[:1] for tensor in layer))  # type: ignore[arg-type]
