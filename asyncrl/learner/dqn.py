"""DQN's updates on batches of transitions: no processes, no shared memory.

One update computes targets, takes a step of the network, and moves the target network. The probability of choices at
random is one of the published weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms import dqn
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import (
    SUM_OF_INPUTS,
    ReplayLearner,
    TargetNetwork,
    TrainedNetwork,
    TrainedPart,
    perceptron_of,
)
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.update_runner import Figures
from asyncrl.models.dqn import QNetwork
from asyncrl.models.encoders import Inputs
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.monitoring.reports import DqnMetrics, UpdateMetrics

_FIGURES = ("loss", "q_mean", SUM_OF_INPUTS, "grad_norm")
_MODEL, _TARGET = "model", "target"


class DqnLearner(ReplayLearner):
    """Owns the network and its target network."""

    model: QNetwork

    def __init__(
        self,
        model: QNetwork,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the model, on `device`; `storage` allocates their memory."""
        super().__init__(model, config, device, storage := storage or ParameterStore())
        self.target_model = copy.deepcopy(self.model)
        # Hand-written passes through a perceptron are faster than autograd and compute the same.
        has_passes = self.model.encoder is None and config.precision != "bf16"
        mlp = perceptron_of(self.model.mlp) if has_passes else None
        self._network = TrainedNetwork(_MODEL, self.model, mlp, config, torch.float32, storage)
        self._target = TargetNetwork(_TARGET, self.target_model, mlp, torch.float32, storage)
        self._pass, self._target_pass = MlpPass(config.nonlinearity), MlpPass(config.nonlinearity)
        self._set_up(
            self._update_by_autograd if mlp is None else self._update_by_passes,
            DqnMetrics,
            acting=self._network,
            trained={_MODEL: TrainedPart(self._network, _FIGURES, "weights")},
            targets={_TARGET: self._target},
        )

    def train(self, batches: Sequence[Transitions], env_steps_before: int = 0) -> UpdateMetrics | None:
        """See `ReplayLearner.train`; also sets the probability of a choice at random."""
        self.set_exploration(env_steps_before)
        metrics = super().train(batches, env_steps_before)
        self.set_exploration(env_steps_before)  # weight decay changes all parameters
        return metrics

    def set_exploration(self, env_steps: int) -> None:
        """See `ReplayLearner.set_exploration`: the probability of a choice at random."""
        epsilon = self._reported["exploration_rate"] = exploration_rate(self._config, env_steps)
        self.model.epsilon.fill_(epsilon)

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """One update of any network."""
        batch, model = Transitions(*inputs), self.model
        obs, later = model.inputs_of(batch.obs), model.inputs_of(batch.next_obs)
        next_values, target_values = self._values(model, later), self._values(self.target_model, later)
        target = dqn.double_target(
            batch.reward, batch.discount, next_values, target_values, model.mask_of(later.floats)
        )
        with torch.enable_grad():
            values = self._values(model, obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
            loss = dqn.dqn_loss(values, target, batch.weight)
            self._network.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        return self._step(loss.detach(), values.detach(), target, obs.floats.sum() + later.floats.sum())

    def _update_by_passes(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """The same without autograd, for a perceptron over numbers."""
        batch, model = Transitions(*inputs), self.model
        size = len(batch.reward)
        rows = torch.cat((batch.obs, batch.next_obs)).to(torch.float32)
        normalized = model.normalize_obs(rows, out=rows)
        outputs = self._pass.forward(self._network.layers, normalized)[0]
        target_values = model.values_of(self._target_pass.forward(self._target.layers, normalized[size:])[0])
        all_values, choice = model.values_of(outputs), batch.action.unsqueeze(-1)
        target = dqn.double_target(batch.reward, batch.discount, all_values[size:], target_values)
        values = all_values[:size].gather(-1, choice).squeeze(-1)
        gradient = (values - target).clamp_(-1.0, 1.0).mul_(batch.weight).div_(size).unsqueeze(-1)
        by_value = torch.zeros_like(all_values[:size]).scatter_(-1, choice, gradient)
        by_output = model.gradient_of_outputs(by_value).unsqueeze(0)
        self._pass.backward(self._network.layers, by_output, self._network.gradients)
        return self._step(dqn.dqn_loss(values, target, batch.weight), values, target, normalized.sum())

    def _step(self, loss: Tensor, values: Tensor, target: Tensor, sum_of_inputs: Tensor) -> Figures:
        """Steps down the gradient, and moves the target network; returns figures and perhaps the errors."""
        figures = self._network.step(self._rate, torch.stack((loss, values.mean(), sum_of_inputs)))
        self._target.follow(self._network, self._config.tau)
        return (figures, (values - target).abs()) if self._config.prioritized_replay else (figures,)

    def _values(self, network: QNetwork, inputs: Inputs) -> Tensor:
        enabled = self._config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
            return network.values(inputs)


def exploration_rate(config: TrainConfig, env_steps: int) -> float:
    """The probability of a choice at random after so many environment steps: it falls linearly, then stays."""
    last = config.exploration_fraction * config.train_for_env_steps
    share = min(1.0, env_steps / last) if last > 0 else 1.0
    return config.exploration_initial_eps + share * (config.exploration_final_eps - config.exploration_initial_eps)
