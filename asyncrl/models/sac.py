"""SAC's networks: the actor that roles act with, and the twin critics that only the learner has."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, EnvSpec
from asyncrl.models.actor_critic import normalize, unchanged
from asyncrl.models.distributions import ActionDistribution, FloatArray, make_distribution
from asyncrl.models.stacked_mlp import StackedMlp
from asyncrl.runtime.seeding import Stream, derive_seed

SAC_LOG_STD_RANGE = (-5.0, 2.0)
_MIDDLE = sum(SAC_LOG_STD_RANGE) / 2.0
_HALF_RANGE = (SAC_LOG_STD_RANGE[1] - SAC_LOG_STD_RANGE[0]) / 2.0
_POLICY_HEAD_GAIN = 0.01
NUM_CRITICS = 2


class SacActResult(NamedTuple):
    """What acting on `[B]` observations gives; SAC's actor has no value of them.

    Attributes:
        action: [B, A] float32 before tanh, or [B] int64.
        log_prob: [B] float32, of exactly that action (of its tanh).
        action_parameters: [B, P] float32.
    """

    action: Tensor
    log_prob: Tensor
    action_parameters: Tensor


def limit_log_std(raw: Tensor) -> Tensor:
    """Log-deviations in [-5, 2] from the network's outputs: the identity about the middle, bent smoothly at the ends.

    A clamp would do the same in the middle, but its gradient is 0 outside: a deviation that has once left the range
    under a large entropy coefficient would not come back.
    """
    return torch.tanh(raw / _HALF_RANGE) * _HALF_RANGE + _MIDDLE


def limit_log_std_array(raw: FloatArray) -> None:
    """What `limit_log_std` does, in place on an array."""
    raw /= np.float32(_HALF_RANGE)
    np.tanh(raw, out=raw)
    raw *= np.float32(_HALF_RANGE)
    raw += np.float32(_MIDDLE)


class SacActor(nn.Module):
    """The policy: a squashed Gaussian whose deviation depends on the observation, or a categorical distribution.

    Its initial weights follow from `config.seed` alone. `statistics` is a buffer [2D] float32 that holds the mean and
    deviation of observations. It is never trained: the learner sets it, and it travels with the parameters.
    """

    statistics: Tensor
    rnn_state_size = 0

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__()
        self.observation_size = spec.observation_size
        self._normalized = None if all(spec.observation.normalized) else torch.tensor(spec.observation.normalized)
        self.distribution: ActionDistribution = make_distribution(spec.action, squash=True)
        self.normalizes_obs = config.normalize_input
        self.is_gaussian = isinstance(spec.action, BoxAction)
        self.nonlinearity = config.nonlinearity
        widths = [spec.observation_size, *config.encoder_mlp_layers, self.distribution.num_parameters]
        gain = _POLICY_HEAD_GAIN if config.policy_initialization == "orthogonal" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.mlp = StackedMlp(1, widths, config.nonlinearity, gain)
        if self.is_gaussian:
            num_actions = self.distribution.num_parameters // 2
            with torch.no_grad():
                self.mlp.layers()[-1].bias[:, num_actions:] += _raw_log_std(config.initial_stddev)
        size = self.observation_size
        self.register_buffer("statistics", torch.cat((torch.zeros(size), torch.ones(size))))

    @property
    def obs_mean(self) -> Tensor:
        """[D] view of `statistics`."""
        return self.statistics[: self.observation_size]

    @property
    def obs_std(self) -> Tensor:
        """[D] view of `statistics`."""
        return self.statistics[self.observation_size :]

    @property
    def array_layers(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Weight `[out, in]` and bias `[out]` of each layer, the last one included, as views."""
        *hidden, head = self.mlp.layers()
        return *((layer.weight[0].t(), layer.bias[0, 0]) for layer in hidden), (head.weight[0], head.bias[0, :, 0])

    def normalize_obs(self, obs: Tensor, out: Tensor | None = None) -> Tensor:
        """Observations `[..., D]` in units of their deviation, clipped to +-10; unchanged without `normalize_input`.

        Args:
            obs: raw observations.
            out: where to write them, which may be `obs` itself; a new tensor if not given.
        """
        return normalize(obs, self.obs_mean, self.obs_std, out) if self.normalizes_obs else unchanged(obs, out)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Puts new statistics `[D]` in force; choices and flags stay as they are."""
        if self._normalized is not None:
            mask = self._normalized.to(mean.device)
            mean, std = mean.where(mask, 0.0), std.where(mask, 1.0)
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std)

    def forward(self, normalized_obs: Tensor) -> Tensor:
        """Parameters `[B, P]` of the action distributions for `[B, D]` normalized observations."""
        return self.parameters_of(self.mlp(normalized_obs)[0])

    def parameters_of(self, outputs: Tensor) -> Tensor:
        """Turn the network's outputs `[B, P]` into what the distribution takes."""
        if not self.is_gaussian:
            return log_softmax(outputs, dim=-1)
        mean, raw_log_std = outputs.chunk(2, dim=-1)
        return torch.cat((mean, limit_log_std(raw_log_std)), dim=-1)

    def outputs_gradient(self, parameters: Tensor, gradient: Tensor) -> Tensor:
        """Take a gradient back through `parameters_of`.

        Args:
            parameters: [B, P], what it returned.
            gradient: [B, P], with respect to these; it is overwritten.

        Returns:
            [B, P], with respect to the network's outputs.
        """
        if not self.is_gaussian:
            return torch.addcmul(gradient, parameters.exp(), gradient.sum(-1, keepdim=True), value=-1.0)
        num_actions = parameters.shape[-1] // 2
        bend = (parameters[:, num_actions:] - _MIDDLE) / _HALF_RANGE
        gradient[:, num_actions:].mul_(1.0 - bend * bend)
        return gradient

    @torch.inference_mode()
    def act(
        self,
        obs: Tensor,
        generator: torch.Generator | None = None,
        rnn_state: Tensor | None = None,
        deterministic: bool = False,
    ) -> SacActResult:
        """Choose actions for raw observations `[B, D] float32`.

        Args:
            obs: the observations.
            generator: of random numbers, on the model's device.
            rnn_state: empty, because it is not recurrent.
            deterministic: take the policy's mode instead of drawing from it.
        """
        parameters = self.forward(self.normalize_obs(obs))
        action, log_prob = self.distribution.choose(parameters, generator, deterministic)
        return SacActResult(action, log_prob, parameters)


class TwinCritic(nn.Module):
    """Two action values, each by a network of its own; both networks run as one (Haarnoja et al. 2018, section 6).

    Their initial weights follow from `config.seed` alone. Continuous actions in [-1, 1] are inputs beside the
    observation; of discrete ones all have their values as outputs.
    """

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__()
        self.takes_actions = isinstance(spec.action, BoxAction)
        num_inputs, num_outputs = spec.observation_size, 1
        if isinstance(spec.action, BoxAction):
            num_inputs += spec.action.size
        else:
            num_outputs = spec.action.num_parameters
        widths = [num_inputs, *config.encoder_mlp_layers, num_outputs]
        gain = 1.0 if config.policy_initialization == "orthogonal" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(config.seed, Stream.CRITIC_WEIGHTS))
            self.mlp = StackedMlp(NUM_CRITICS, widths, config.nonlinearity, gain, config.critic_layer_norm)

    def forward(self, normalized_obs: Tensor, action: Tensor | None = None) -> Tensor:
        """Values `[2, B]` of actions `[B, A]` in [-1, 1], or `[2, B, n]` of all discrete actions."""
        inputs = normalized_obs if action is None else torch.cat((normalized_obs, action), dim=-1)
        values: Tensor = self.mlp(inputs)
        return values.squeeze(-1) if self.takes_actions else values


def _raw_log_std(std: float) -> float:
    """What `limit_log_std` turns into the logarithm of `std`, or of the nearest deviation well within the range."""
    bend = (math.log(std) - _MIDDLE) / _HALF_RANGE
    return _HALF_RANGE * math.atanh(min(max(bend, -0.99), 0.99))
