"""TD3's updates on batches of transitions: no processes, no shared memory.

One update computes targets with the target policy and the target critics, then trains the critics. At every
`policy_delay`-th update it trains the policy and moves all target networks (Fujimoto et al. 2018, algorithm 1).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms import td3
from asyncrl.algorithms.sac import critic_loss
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import (
    CRITIC_FIGURES,
    ReplayLearner,
    TargetNetwork,
    TrainedNetwork,
    TrainedPart,
    perceptron_of,
)
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.update_runner import Figures
from asyncrl.models.encoders import Inputs
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.sac import TwinCritic
from asyncrl.models.stacked_mlp import StackedLayer
from asyncrl.models.td3 import DeterministicActor
from asyncrl.monitoring.reports import Td3Metrics

_ACTOR_FIGURES = ("actor_loss", "grad_norm_actor")
_ACTOR, _CRITIC, _TARGET_ACTOR, _TARGET_CRITIC = "actor", "critic", "target_actor", "target_critic"


class Td3Learner(ReplayLearner):
    """Owns actor and critics, and a target network of each.

    Attributes:
        critic: the twin critics.
        target_actor, target_critic: the target networks.
    """

    model: DeterministicActor

    def __init__(
        self,
        actor: DeterministicActor,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the actor and new critics, on `device`; `storage` allocates their memory."""
        super().__init__(actor, config, device, storage := storage or ParameterStore())
        self.critic = actor.make_critic(spec, config).to(actor.statistics)
        self.target_actor, self.target_critic = copy.deepcopy(self.model), copy.deepcopy(self.critic)
        # Hand-written passes through perceptrons are faster than autograd and compute the same.
        actor_mlp, critic_mlp = None, None
        if actor.has_passes and isinstance(self.critic, TwinCritic):
            actor_mlp, critic_mlp = perceptron_of(actor.mlp), perceptron_of(self.critic.mlp)
        has_passes = actor_mlp is not None and critic_mlp is not None
        self._actor = TrainedNetwork(_ACTOR, self.model, actor_mlp, config, self._dtype, storage)
        self._critic = TrainedNetwork(_CRITIC, self.critic, critic_mlp, config, self._dtype, storage)
        self._target_actor = TargetNetwork(_TARGET_ACTOR, self.target_actor, actor_mlp, self._dtype, storage)
        self._target_critic = TargetNetwork(_TARGET_CRITIC, self.target_critic, critic_mlp, self._dtype, storage)
        self._actor_pass, self._critic_pass = MlpPass(config.nonlinearity), MlpPass(config.nonlinearity)
        # The policy's loss needs the first critic only.
        self._first_layers = [_of_first(layer) for layer in self._critic.layers]
        self._first_pass = MlpPass(config.nonlinearity)
        self._set_up(
            self._update_by_passes if has_passes else self._update_by_autograd,
            Td3Metrics,
            acting=self._actor,
            trained={
                _CRITIC: TrainedPart(self._critic, CRITIC_FIGURES, "critics' weights"),
                _ACTOR: TrainedPart(self._actor, _ACTOR_FIGURES, "policy's weights"),
            },
            targets={_TARGET_ACTOR: self._target_actor, _TARGET_CRITIC: self._target_critic},
        )

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        own = self.model.statistics
        shape = (batch.reward.numel(), self.model.distribution.num_actions)
        return *batch, torch.randn(shape, generator=self._generator, dtype=own.dtype, device=own.device)

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """One update of any networks."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        obs, later = self.model.inputs_of(batch.obs), self.model.inputs_of(batch.next_obs)
        next_action = self._smoothed(self._action(self.target_actor, later), noise)
        next_values = self._values(self.target_critic, later, next_action)
        target = td3.clipped_double_target(batch.reward, batch.discount, next_values)
        with torch.enable_grad():
            values = self._values(self.critic, obs, batch.action.tanh())
            loss = 0.5 * (values - target).square().mean(1).sum()
            self._critic.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        critic_figures = self._step_critic(loss.detach(), values.detach(), obs.floats.sum() + later.floats.sum())
        if not trains_actor:
            return critic_figures, None
        with torch.enable_grad():
            loss = -self._values(self.critic, obs, self._action(self.model, obs))[0].mean()
            self._actor.flat.zero_grad()
            loss.backward(inputs=[each for each in self.model.parameters() if each.requires_grad])  # type: ignore[no-untyped-call]
        return critic_figures, self._step_actor(loss.detach())

    def _update_by_passes(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """The same without autograd, for perceptrons."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size, num_obs = len(batch.reward), self.model.observation_size
        rows = torch.cat((batch.obs, batch.next_obs)).to(self.model.statistics.dtype)
        normalized = self.model.normalize_obs(rows, out=rows)
        obs = normalized.to(self._dtype)
        later = obs[size:]
        next_action = self._smoothed(self._actor_pass.forward(self._target_actor.layers, later)[0].tanh(), noise)
        both = torch.cat((later, next_action.to(obs.dtype)), dim=1)
        next_values = self._critic_pass.forward(self._target_critic.layers, both).squeeze(-1)
        target = td3.clipped_double_target(batch.reward, batch.discount, next_values)
        both = torch.cat((obs[:size], batch.action.tanh().to(obs.dtype)), dim=1)
        values = self._critic_pass.forward(self._critic.layers, both).squeeze(-1)
        loss = critic_loss(values, target)
        self._critic_pass.backward(self._critic.layers, loss.gradient.unsqueeze(-1), self._critic.gradients)
        critic_figures = self._step_critic(loss.value, values, normalized.sum())
        if not trains_actor:
            return critic_figures, None
        action = self._actor_pass.forward(self._actor.layers, obs[:size])[0].tanh()
        both[:, num_obs:] = action
        loss = td3.actor_loss(self._first_pass.forward(self._first_layers, both)[0, :, 0])
        by_value, columns = loss.gradient.view(1, size, 1), slice(num_obs, None)
        by_action = self._first_pass.backward(self._first_layers, by_value, inputs=columns)
        assert by_action is not None
        by_output = td3.actor_gradient(action, by_action[0].to(action.dtype)).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, by_output, self._actor.gradients)
        return critic_figures, self._step_actor(loss.value)

    def _smoothed(self, action: Tensor, noise: Tensor) -> Tensor:
        config = self._config
        return td3.smoothed_action(action, noise, config.target_policy_noise, config.target_noise_clip)

    def _step_critic(self, loss: Tensor, values: Tensor, sum_of_inputs: Tensor) -> Tensor:
        """Steps the critics down their gradient; returns figures."""
        return self._critic.step(self._rate, torch.stack((loss, values.mean(), sum_of_inputs)))

    def _step_actor(self, loss: Tensor) -> Tensor:
        """Steps the policy down its gradient, and moves all target networks; returns figures."""
        figures = self._actor.step(self._rate, loss.unsqueeze(0))
        self._target_actor.follow(self._actor, self._config.tau)
        self._target_critic.follow(self._critic, self._config.tau)
        return figures

    def _action(self, actor: DeterministicActor, inputs: Inputs) -> Tensor:
        """Actions `[B, A]` in [-1, 1]."""
        with self.in_reduced_precision():
            return torch.tanh(actor(*inputs))

    def _values(self, critic: TwinCritic, inputs: Inputs, action: Tensor) -> Tensor:
        """Values `[2, B]` of actions."""
        with self.in_reduced_precision():
            return critic.values(inputs, action).squeeze(-1)


def _of_first(layer: StackedLayer) -> StackedLayer:
    """The layer of the first of several networks, as views."""
    return StackedLayer(*(None if tensor is None else tensor[:1] for tensor in layer))  # type: ignore[arg-type]
