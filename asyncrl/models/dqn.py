"""DQN's network: values of all choices, and the epsilon-greedy policy that acts with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.models.distributions import FORBIDDEN, is_forbidden
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor


class QNetwork(SacActor):
    """Values of the choices, with an encoder as SAC's actor has. Its policy is categorical: see `epsilon_greedy`."""

    def build(self, spec: EnvSpec, config: TrainConfig) -> None:
        if not isinstance(spec.action, DiscreteAction):
            raise UsageError(f"--algo=dqn needs an action that is one choice, and {spec.env_id} has {spec.action}.")
        self._is_dueling = config.dueling
        num_outputs = self.distribution.num_parameters + int(self._is_dueling)
        self._make_networks(spec, config, num_outputs, head_gain=1.0)
        self.exploration = nn.ParameterList([torch.full((1,), config.exploration_initial_eps)])

    @property
    def epsilon(self) -> Tensor:
        """The probability [1] of a choice at random. It is published with the weights; no gradient reaches it."""
        epsilon: Tensor = self.exploration[0].detach()
        return epsilon

    def values(self, inputs: Inputs) -> Tensor:
        """Values `[B, n]` for normalized observations."""
        features = inputs.floats if self.encoder is None else self.encoder(inputs)
        return self.values_of(self.mlp(features)[0].to(self.statistics.dtype))

    def parameters_of(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-probabilities `[B, n]` of the epsilon-greedy policy from the network's outputs."""
        return epsilon_greedy(self.values_of(outputs), self.epsilon, mask)

    def values_of(self, outputs: Tensor) -> Tensor:
        """Values `[B, n]` from the network's outputs."""
        return dueling_values(outputs) if self._is_dueling else outputs

    def gradient_of_outputs(self, gradient: Tensor) -> Tensor:
        """The backward pass of `values_of`: from the gradient of the values `[B, n]` to that of the outputs."""
        if not self._is_dueling:
            return gradient
        total = gradient.sum(-1, keepdim=True)
        return torch.cat((gradient - total / gradient.shape[-1], total), dim=-1)


def dueling_values(outputs: Tensor) -> Tensor:
    """Action values `[B, n]` from advantages and the value of the state, `[B, n + 1]`.

    Wang et al. 2016 (arXiv:1511.06581), equation 9.
    """
    advantages, value = outputs[..., :-1], outputs[..., -1:]
    return value + advantages - advantages.mean(-1, keepdim=True)


def epsilon_greedy(values: Tensor, epsilon: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probabilities `[B, n]` of the policy that draws a choice with probability epsilon, else takes the best.

    Args:
        values: [B, n].
        epsilon: scalar in [0, 1].
        mask: [B, n], 0 for forbidden choices, which are never drawn. A mask that forbids every choice forbids none.
    """
    best = best_choice(values, mask)
    allowed = torch.ones_like(values) if mask is None else is_forbidden(mask).logical_not().to(values)
    drawn = epsilon * allowed / allowed.sum(-1, keepdim=True)
    greedy = torch.zeros_like(values).scatter_(-1, best.unsqueeze(-1), 1.0)
    probability = drawn + (1.0 - epsilon) * greedy
    return probability.log().clamp(min=FORBIDDEN)


def best_choice(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The allowed choice `[B]` with the largest of `values: [B, n]`; `mask` as in `epsilon_greedy`."""
    if mask is not None:
        values = values.masked_fill(is_forbidden(mask), FORBIDDEN)
    return values.argmax(-1)
