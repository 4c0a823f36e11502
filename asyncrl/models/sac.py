"""SAC's networks: the actor, and the twin critics that only the learner has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.config.critic_kinds import critic_kind
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import load
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.arrays import ArrayNetworks, weights_of
from asyncrl.models.cores import unroll_after
from asyncrl.models.distributions import (
    ActionDistribution,
    ActionParts,
    FloatArray,
    SquashedGaussian,
    make_distribution,
)
from asyncrl.models.encoders import Inputs, Layers, split_tensor
from asyncrl.models.exploration import Exploration, make_action_noise
from asyncrl.models.normalized import NormalizedModel
from asyncrl.models.registry import DEFAULT, make_actor_encoder, make_core, make_encoder
from asyncrl.models.stacked_mlp import StackedMlp
from asyncrl.processes.seeding import Stream, derive_seed, restoring_global_generators, seed_global_generators

POLICY_HEAD_GAIN = 0.01
"""Gain of the last layer's orthogonal weights: the first means are near 0."""


class LogStdRange(NamedTuple):
    """Log standard deviations from outputs of a network: nearly linear in the middle of their range, saturated at its
    ends.

    The gradient of a clamp is 0 outside the range: a standard deviation that left it under a large entropy coefficient
    would not return.

    Attributes:
        middle: log standard deviation of the output 0.
        half_range: largest distance from it.
        scale: the output that is one unit of tanh.
    """

    middle: float
    half_range: float
    scale: float

    def limit(self, raw: Tensor) -> Tensor:
        """Log standard deviations from outputs."""
        return torch.tanh(raw / self.scale) * self.half_range + self.middle

    def raw(self, std: float) -> float:
        """The output that gives the standard deviation `std`, clipped to well within the range."""
        bend = (math.log(std) - self.middle) / self.half_range
        return self.scale * math.atanh(min(max(bend, -0.99), 0.99))


LOG_STD_RANGE = LogStdRange(middle=-1.5, half_range=3.5, scale=3.5)
"""In [-5, 2], of perceptrons."""


class SacActResult(NamedTuple):
    """Actions for `[B]` observations; SAC's actor gives no values.

    Attributes:
        action: [B, A] float32 before tanh, or [B] int64.
        log_prob: [B] float32, of exactly that action (of its tanh).
        action_parameters: [B, P] float32.
        rnn_state: [B, S] float32, after these observations; S is 0 without a recurrent core.
    """

    action: Tensor
    log_prob: Tensor
    action_parameters: Tensor
    rnn_state: Tensor


def make_network(
    num_networks: int, widths: Sequence[int], config: TrainConfig, head_gain: float | None, layer_norm: bool = False
) -> Any:
    """K networks of the kind that the settings name (`CriticKind.network`); without hidden layers always linear ones.

    Args:
        num_networks: K.
        widths: of input, hidden layers or blocks, and output.
        config: the settings.
        head_gain: of perceptrons, see `StackedMlp`.
        layer_norm: of perceptrons, see `StackedMlp`.
    """
    other = critic_kind(config).network
    if other is None or len(widths) == 2:
        return StackedMlp(num_networks, widths, config.nonlinearity, head_gain, layer_norm)
    return load(other)(num_networks, widths, config)


def needs_encoder(spec: EnvSpec, config: TrainConfig) -> bool:
    """Whether SAC's networks have an encoder; without one, all numbers of an observation go into one perceptron."""
    observation = spec.observation
    return observation.has_images or observation.num_mask > 0 or config.encoder != DEFAULT or config.use_rnn


class SacActor(NormalizedModel):
    """The policy: squashed Gaussians whose standard deviations depend on the observation, and categorical
    distributions.

    An encoder and a linear layer, or one perceptron over numbers (`needs_encoder`); with `use_rnn` a recurrent core is
    between encoder and layer. Its initial weights depend on `config.seed` alone.

    Attributes:
        parts: continuous dimensions and choices of an action.
        has_passes: whether the hand-written passes of `asyncrl.models.mlp_pass` can train it and NumPy can act: one
            perceptron, and actions that are either continuous or one choice.
        rnn_state_size: size S of the recurrent state of one environment, 0 without a recurrent core.
        core: the recurrent core; not there without use_rnn.
    """

    rnn_state_size = 0
    core: Any
    _is_stddev: Tensor

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__(spec.observation, config.normalize_input)
        self.distribution = self.make_distribution(spec)
        self.parts = ActionParts(self.distribution)
        self.is_gaussian = isinstance(self.distribution, SquashedGaussian)
        self.nonlinearity = config.nonlinearity
        with restoring_global_generators():
            seed_global_generators(config.seed)
            self.build(spec, config)
        if config.use_rnn and self.rnn_state_size == 0:
            raise UsageError(f"--use_rnn=True: the model {type(self).__name__} has no recurrent core.")
        has_perceptron = self.encoder is None and isinstance(self.mlp, StackedMlp)
        self.has_passes = type(self) is SacActor and has_perceptron and self.parts.is_plain
        self._log_std_range: LogStdRange = getattr(self.mlp, "log_std_range", LOG_STD_RANGE)
        positions = list(self.distribution.stddev_positions)
        if positions:
            is_stddev = torch.zeros(self.distribution.num_parameters, dtype=torch.bool)
            is_stddev[positions] = True
            self.register_buffer("_is_stddev", is_stddev, persistent=False)
            self._set_initial_stddev(config.initial_stddev)
        self._add_statistics()

    def make_distribution(self, spec: EnvSpec) -> ActionDistribution:
        """The family of distributions over actions."""
        return make_distribution(spec.action, squash=True)

    def build(self, spec: EnvSpec, config: TrainConfig) -> None:
        """Makes the networks; a user's subclass may make others here (see `docs/custom.md`).

        They are `encoder` (None if all numbers go into the perceptron), from `Inputs` to features, `mlp`, the result
        of `make_network` for one network from features to the outputs of the policy, and with use_rnn between them
        `core`, whose state has `rnn_state_size` numbers.
        """
        self._make_networks(spec, config, self.distribution.num_parameters, POLICY_HEAD_GAIN)

    def _make_networks(self, spec: EnvSpec, config: TrainConfig, num_outputs: int, head_gain: float) -> None:
        self.encoder: nn.Module | None = None
        self.mlp: Any
        gain = head_gain if config.policy_initialization == "orthogonal" else None
        widths = [spec.observation_size, *config.encoder_mlp_layers, num_outputs]
        if needs_encoder(spec, config) or config.critic_only_keys:
            self.encoder = encoder = make_actor_encoder(self.layout, config)
            widths = [encoder.output_size, widths[-1]]
        if config.use_rnn and self.encoder is not None:
            self.core = make_core(widths[0], config)
            self.rnn_state_size, widths[0] = self.core.state_size, self.core.output_size
        self.mlp = make_network(1, widths, config, gain)

    @torch.no_grad()
    def _set_initial_stddev(self, stddev: float) -> None:
        self.mlp.head_bias[:, list(self.distribution.stddev_positions)] += self._log_std_range.raw(stddev)

    def make_exploration(
        self, config: TrainConfig, buffer: InferenceBuffer, num_splits: int, seed: int
    ) -> Exploration | None:
        """Noise with which the policy does not act by itself."""
        return make_action_noise(self.distribution, config, num_splits, buffer.num_envs, seed)

    def make_critic(self, spec: EnvSpec, config: TrainConfig) -> TwinCritic:
        """The critics that are trained with this policy; a user's subclass may make others."""
        critic: TwinCritic = load(critic_kind(config).critic)(spec, config)
        return critic

    def array_networks(self) -> ArrayNetworks:
        """Views of the networks, for `ArrayPolicy`."""
        *hidden, head = weights_of(self._layers())
        return ArrayNetworks((slice(None), hidden), head, self._array_parameters)

    def _layers(self) -> Layers:
        """Weight `[out, in]` and bias `[out]` of each layer of the perceptron, the last one included, as views."""
        assert isinstance(self.mlp, StackedMlp)
        *hidden, head = self.mlp.layers()
        return *((layer.weight[0].t(), layer.bias[0, 0]) for layer in hidden), (head.weight[0], head.bias[0, :, 0])

    def _array_parameters(self, outputs: FloatArray, features: FloatArray, obs: FloatArray) -> FloatArray:
        if not self.is_gaussian:
            return self.distribution.parameter_arrays_of(outputs, None)
        raw = outputs[:, self.distribution.num_parameters // 2 :]  # `LOG_STD_RANGE.limit`, in place
        raw /= np.float32(LOG_STD_RANGE.scale)
        np.tanh(raw, out=raw)
        raw *= np.float32(LOG_STD_RANGE.half_range)
        raw += np.float32(LOG_STD_RANGE.middle)
        return outputs

    def inputs_of(self, rows: Tensor) -> Inputs:
        """The networks' inputs for raw rows `[B, row_size]`."""
        inputs = split_tensor(self.layout, rows)
        return inputs._replace(floats=self.normalize_obs(inputs.floats.to(self.statistics.dtype)))

    def forward(self, floats: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Parameters `[B, P]` of the action distributions for normalized observations."""
        return self._head(floats if self.encoder is None else self.encoder(Inputs(floats, pixels)), floats)

    def step(self, inputs: Inputs, rnn_state: Tensor) -> tuple[Tensor, Tensor]:
        """Parameters `[B, P]` for normalized observations, and the recurrent states `[B, S]` after them."""
        if self.rnn_state_size == 0:
            return self.forward(*inputs), rnn_state
        assert self.encoder is not None
        features, after = self.core.step(self.encoder(inputs), rnn_state)
        return self._head(features, inputs.floats), after

    def unroll(self, inputs: Inputs, rnn_state: Tensor, begins: Tensor, burn_in: int = 0) -> Tensor:
        """Parameters `[(T - burn_in) * B, P]` for sequences of T rows; see `unroll_after`."""
        features = unroll_after(self.encoder, self.core, inputs, rnn_state, begins, burn_in)
        return self._head(features, inputs.floats[burn_in * begins.shape[1] :])

    def _head(self, features: Tensor, floats: Tensor) -> Tensor:
        outputs = self.mlp(features)[0].to(self.statistics.dtype)
        return self.parameters_of(outputs, self.mask_of(floats))

    def mask_of(self, floats: Tensor) -> Tensor | None:
        """The mask of choices in the numbers of observations; None if they have none."""
        return floats[:, self.layout.num_features :] if self.layout.num_mask else None

    def parameters_of(self, outputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The distribution's parameters `[B, P]` from the network's outputs."""
        if self.has_passes and not self.is_gaussian:
            return log_softmax(outputs, dim=-1)
        if self.has_passes:
            mean, raw_log_std = outputs.chunk(2, dim=-1)
            return torch.cat((mean, LOG_STD_RANGE.limit(raw_log_std)), dim=-1)
        parameters = self.distribution.parameters_of(outputs, None, mask)
        if self.distribution.num_stddevs > 0:  # in place of the distribution's own limits
            parameters = torch.where(self._is_stddev, self._log_std_range.limit(outputs), parameters)
        return parameters

    def outputs_gradient(self, parameters: Tensor, gradient: Tensor) -> Tensor:
        """The backward pass of `parameters_of`: the gradient `[B, P]` with respect to the network's outputs.

        Args:
            parameters: [B, P], its result.
            gradient: [B, P], with respect to the result; it is overwritten.
        """
        if not self.is_gaussian:
            return torch.addcmul(gradient, parameters.exp(), gradient.sum(-1, keepdim=True), value=-1.0)
        num_actions = parameters.shape[-1] // 2
        bend = (parameters[:, num_actions:] - LOG_STD_RANGE.middle) / LOG_STD_RANGE.half_range
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
        """Chooses actions for raw rows of observations `[B, row_size]`.

        Args:
            obs: the observations.
            generator: of random numbers, on the model's device.
            rnn_state: [B, S], before the observations; zeros by default.
            deterministic: take the policy's mode instead of a sample.
        """
        if rnn_state is None:
            rnn_state = self.statistics.new_zeros(len(obs), self.rnn_state_size)
        parameters, after = self.step(self.inputs_of(obs), rnn_state)
        action, log_prob = self.distribution.choose(parameters, generator, deterministic)
        return SacActResult(action, log_prob, parameters, after)


class TwinCritic(nn.Module):
    """Separate action values, usually two, computed by one batched network (Haarnoja et al. 2018, section 6).

    Their initial weights depend on `config.seed` alone. Continuous actions in [-1, 1] are inputs beside the
    observation; each combination of the choices of a group has an output (`ActionParts`). With an encoder, its features
    are inputs of all, and one hidden layer of each combines them with the action. With `use_rnn` a recurrent core
    follows the encoder, and `unroll` and `combine` give values.

    Attributes:
        core: the recurrent core; None without use_rnn.
    """

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__()
        parts = ActionParts(make_distribution(spec.action, squash=True))
        with restoring_global_generators():
            seed_global_generators(derive_seed(config.seed, Stream.CRITIC_WEIGHTS))
            self.encoder: nn.Module | None = None
            self.core: Any = None
            hidden = config.encoder_mlp_layers if config.critic_mlp_layers is None else config.critic_mlp_layers
            num_features = spec.observation_size
            if needs_encoder(spec, config):
                self.encoder = encoder = make_encoder(spec.observation, config)
                num_features, hidden = encoder.output_size, hidden[-1:]
            if config.use_rnn:
                self.core = make_core(num_features, config)
                num_features = self.core.output_size
            widths = [num_features + parts.num_continuous, *hidden, parts.num_values * self.outputs_of_a_value(config)]
            gain = 1.0 if config.policy_initialization == "orthogonal" else None
            self.mlp = make_network(config.num_critics, widths, config, gain, config.critic_layer_norm)

    def outputs_of_a_value(self, config: TrainConfig) -> int:
        """Outputs of a network from which `values` computes one value."""
        return 1

    def values(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Values `[K, B, N]` of continuous actions `[B, C]` in [-1, 1] with each combination of choices."""
        return self._outputs(inputs, action)

    def predictions(self, inputs: Inputs, action: Tensor) -> Tensor:
        """What the loss of the critics compares with their targets: `values`, for its arguments."""
        return self.values(inputs, action)

    def _outputs(self, inputs: Inputs, action: Tensor) -> Tensor:
        features = inputs.floats if self.encoder is None else self.encoder(inputs)
        return self.combine(features, action).to(inputs.floats.dtype)

    def unroll(self, inputs: Inputs, begins: Tensor, burn_in: int = 0) -> Tensor:
        """Features `[(T - burn_in) * B, F]` for sequences of T rows, from a state of zeros; see `unroll_after`."""
        state = inputs.floats.new_zeros(begins.shape[1], self.core.state_size)
        return unroll_after(self.encoder, self.core, inputs, state, begins, burn_in)

    def combine(self, features: Tensor, action: Tensor) -> Tensor:
        """Outputs `[K, B, N]` for features `[B, F]` of observations and continuous actions `[B, C]`."""
        outputs: Tensor = self.mlp(torch.cat((features, action.to(features)), dim=-1))
        return outputs
