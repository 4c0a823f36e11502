"""`Dqn.update` without autograd, for a perceptron over numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.dqn import Dqn, double_target, dqn_loss
from asyncrl.algorithms.off_policy import Transitions
from asyncrl.learner.trained_network import TargetNetwork, TrainedNetwork
from asyncrl.models.mlp_pass import MlpPass


class DqnPasses:
    """Makes the updates of a `Dqn`. The networks have `layers`."""

    def __init__(self, dqn: Dqn, network: TrainedNetwork, target: TargetNetwork) -> None:
        self._dqn, self._network, self._target = dqn, network, target
        self._pass, self._target_pass = (MlpPass(dqn.config.nonlinearity) for _ in range(2))

    def update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, ...]:
        """One update from the fields of `Transitions`."""
        batch, model = Transitions(*inputs), self._dqn.model
        size = len(batch.reward)
        rows = torch.cat((batch.obs, batch.next_obs)).to(torch.float32)
        normalized = model.normalize_obs(rows, out=rows)
        outputs = self._pass.forward(self._network.layers, normalized)[0]
        target_values = model.values_of(self._target_pass.forward(self._target.layers, normalized[size:])[0])
        all_values, choice = model.values_of(outputs), batch.action.unsqueeze(-1)
        target = double_target(batch.reward, batch.discount, all_values[size:], target_values)
        values = all_values[:size].gather(-1, choice).squeeze(-1)
        # The gradient of the Huber loss.
        gradient = (values - target).clamp_(-1.0, 1.0).mul_(batch.weight).div_(size).unsqueeze(-1)
        by_value = torch.zeros_like(all_values[:size]).scatter_(-1, choice, gradient)
        by_output = model.gradient_of_outputs(by_value).unsqueeze(0)
        self._pass.backward(self._network.layers, by_output, self._network.gradients)
        loss = dqn_loss(values, target, batch.weight)
        step_metrics = self._network.step(torch.stack((loss, values.mean(), normalized.sum())))
        self._dqn.move_target()
        return self._dqn.results(step_metrics, values, target)
