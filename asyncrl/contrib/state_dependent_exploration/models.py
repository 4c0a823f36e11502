"""Policies with generalized state-dependent exploration (gSDE): Raffin et al. 2020 (arXiv:2005.05719).

The noise of an action is `features @ matrix`: a function of the observation, whose matrix stays the same for many steps
(`noise.py` keeps it). Each element of the matrix is normally distributed with a learned standard deviation of
its own, so the action is Normal(mean, sqrt(features^2 @ sigma^2)), and distributions, losses and slots need no change.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.state_dependent_exploration.noise import StateDependentExploration
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.actor_critic import ActorCritic, ActResult, ForwardResult
from asyncrl.models.arrays import (
    ArrayNetworks,
    FloatArray,
    ParametersOf,
    array_of,
    encoder_of,
    has_perceptron,
    weights_of,
)
from asyncrl.models.encoders import Inputs
from asyncrl.models.precision import without_autocast
from asyncrl.models.registry import make_actor_encoder
from asyncrl.models.sac import POLICY_HEAD_GAIN, SacActor, SacActResult
from asyncrl.models.stacked_mlp import StackedMlp

MIN_VARIANCE = 1e-6
"""Added to the variance, which is 0 where all features are 0."""


def state_dependent_log_std(features: Tensor, log_std: Tensor) -> Tensor:
    """Log standard deviations `[B, A]` of `features @ matrix`, in the precision of `log_std` also under autocast.

    Args:
        features: [B, F], inputs of the policy's last layer.
        log_std: [F, A], log standard deviations of the elements of the matrix.
    """
    with without_autocast(features):
        variance = features.to(log_std.dtype).square() @ (2.0 * log_std).exp()
    return 0.5 * (variance + MIN_VARIANCE).log()


def state_dependent_log_std_array(features: FloatArray, log_std: FloatArray) -> FloatArray:
    """`state_dependent_log_std` of arrays."""
    variance: FloatArray = np.dot(features * features, np.exp(np.float32(2.0) * log_std))
    variance += np.float32(MIN_VARIANCE)
    np.log(variance, out=variance)
    variance *= np.float32(0.5)
    return variance


def _parameters_of(model: ActorCritic | SacActor, log_std: nn.Parameter) -> ParametersOf:
    own, to_parameters = array_of(log_std), model.distribution.parameter_arrays_of
    return lambda outputs, features, obs: to_parameters(outputs, state_dependent_log_std_array(features, own))


def element_stddev(stddev: float, num_features: int) -> float:
    """The standard deviation of a matrix's elements with which actions have `stddev` where all features are 1 or -1."""
    return stddev / math.sqrt(num_features)


def _initial_log_std(num_features: int, num_actions: int, config: TrainConfig) -> nn.Parameter:
    return nn.Parameter(
        torch.full((num_features, num_actions), math.log(element_stddev(config.initial_stddev, num_features)))
    )


class _ResultWithFeatures(ForwardResult):
    """Attributes: features: [B, F], inputs of the policy's last layer."""

    features: Tensor


class StateDependentActorCritic(ActorCritic):
    """Actor and critic whose `log_std` is `[F, A]`: log standard deviations of the elements of noise matrices.

    As in the authors' implementation, no gradient of the standard deviation reaches the features.
    """

    def build(self, config: TrainConfig) -> None:
        """Makes the networks of `ActorCritic`, and the standard deviations."""
        super().build(config)
        self.log_std = _initial_log_std(self.policy_head.in_features, self.distribution.num_actions, config)

    @property
    def runs_in_arrays(self) -> bool:
        """Whether `ArrayPolicy` can act with it."""
        return type(self) is StateDependentActorCritic and self._has_perceptrons

    def make_exploration(
        self, config: TrainConfig, buffer: InferenceBuffer, num_splits: int, seed: int
    ) -> StateDependentExploration:
        """Noise matrices of all environments."""
        return StateDependentExploration(self, config, buffer, seed)

    @torch.no_grad()
    def limit_stddev(self, limit: float) -> None:
        """Lowers elements' standard deviations so that actions have at most `limit` where all features are 1 or -1."""
        assert self.log_std is not None
        self.log_std.clamp_(max=math.log(element_stddev(limit, len(self.log_std))))

    @torch.inference_mode()
    def act_in_training(self, rows: Tensor, generator: torch.Generator | None, rnn_state: Tensor) -> dict[str, Tensor]:
        """Acts with independent noise; also gives the features."""
        result, after = self.step(self.inputs_of(rows), rnn_state)
        assert isinstance(result, _ResultWithFeatures)
        action, log_prob = self.distribution.sample(result.action_parameters, generator)
        value = self.denormalize_value(result.normalized_value)
        acted = ActResult(action, log_prob, value, result.action_parameters, after)
        return {**acted._asdict(), "features": result.features}

    def _make_parameters_of(self) -> ParametersOf:
        assert self.log_std is not None
        return _parameters_of(self, self.log_std)

    def _heads(self, inputs: Inputs, features: Tensor, critic_features: Tensor) -> ForwardResult:
        outputs, value = self._outputs(features, critic_features)
        assert self.log_std is not None
        log_std = state_dependent_log_std(features.detach(), self.log_std)
        result = _ResultWithFeatures(self.distribution.parameters_of(outputs, log_std), value)
        result.features = features
        return result


class StateDependentSacActor(SacActor):
    """SAC's policy with log standard deviations `log_std [F, A]` of noise matrices in place of outputs of the network.

    As in the authors' implementation, the gradient of the standard deviation reaches the features. Autograd trains it.
    """

    log_std: nn.Parameter

    def build(self, spec: EnvSpec, config: TrainConfig) -> None:
        """Makes an encoder, whose outputs are the features, the linear layer over them, and the standard deviations."""
        self.encoder = encoder = make_actor_encoder(self.layout, config)
        num_features, num_actions = encoder.output_size, self.distribution.num_actions
        gain = POLICY_HEAD_GAIN if config.policy_initialization == "orthogonal" else None
        self.mlp = StackedMlp(1, [num_features, num_actions], config.nonlinearity, gain)
        self.log_std = _initial_log_std(num_features, num_actions, config)

    def _set_initial_stddev(self, stddev: float) -> None:
        """Does nothing: `build` has set the standard deviations."""

    @property
    def undecayed(self) -> tuple[nn.Parameter]:
        """Standard deviations are not weights."""
        return (self.log_std,)

    @property
    def runs_in_arrays(self) -> bool:
        """Whether `ArrayPolicy` can act with it."""
        return type(self) is StateDependentSacActor and has_perceptron(self.encoder)

    def array_networks(self) -> ArrayNetworks:
        """Views of the networks, for `ArrayPolicy`."""
        (head,) = weights_of(self._layers())
        return ArrayNetworks(encoder_of(self.encoder), head, _parameters_of(self, self.log_std))

    def make_exploration(
        self, config: TrainConfig, buffer: InferenceBuffer, num_splits: int, seed: int
    ) -> StateDependentExploration:
        """Noise matrices of all environments."""
        return StateDependentExploration(self, config, buffer, seed)

    def forward(self, floats: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Parameters `[B, P]` of the action distributions for normalized observations."""
        return self._parameters_with_features(floats, pixels)[0]

    @torch.inference_mode()
    def act_in_training(self, rows: Tensor, generator: torch.Generator | None, rnn_state: Tensor) -> dict[str, Tensor]:
        """Acts with independent noise; also gives the features."""
        parameters, features = self._parameters_with_features(*self.inputs_of(rows))
        acted = SacActResult(*self.distribution.sample(parameters, generator), parameters, rnn_state)
        return {**acted._asdict(), "features": features}

    def _parameters_with_features(self, floats: Tensor, pixels: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.encoder is not None
        features: Tensor = self.encoder(Inputs(floats, pixels))
        mean = self.mlp(features)[0].to(self.statistics.dtype)
        return torch.cat((mean, state_dependent_log_std(features, self.log_std)), dim=-1), features
