"""Policy and value function over rows of observations: encoders, an optional recurrent core, and heads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.arrays import (
    ArrayCritic,
    ArrayNetworks,
    ParametersOf,
    array_of,
    encoder_of,
    has_perceptron,
    weights_of,
)
from asyncrl.models.cores import RecurrentCore, unrolled
from asyncrl.models.distributions import ActionDistribution, make_distribution
from asyncrl.models.encoders import (
    Inputs,
    Layers,
    initialize_orthogonal,
    layers_of,
    split_tensor,
)
from asyncrl.models.normalized import NormalizedModel
from asyncrl.models.precision import without_autocast
from asyncrl.models.registry import make_actor_encoder, make_core, make_encoder
from asyncrl.processes.seeding import restoring_global_generators, seed_global_generators

_POLICY_HEAD_GAIN = 0.01


class ForwardResult(NamedTuple):
    """Distribution parameters `[B, P]`, and values `[B]` in units of normalized returns."""

    action_parameters: Tensor
    normalized_value: Tensor


class ActResult(NamedTuple):
    """Result of acting on B observations, as slots store it.

    Attributes:
        action: [B, A] float32 or [B] int64, as the distribution produced it (before squashing or clipping).
        log_prob: [B] float32, of exactly that action.
        value: [B] float32, in units of rewards.
        action_parameters: [B, P] float32.
        rnn_state: [B, S] float32, after these observations; S is 0 without a recurrent core.
    """

    action: Tensor
    log_prob: Tensor
    value: Tensor
    action_parameters: Tensor
    rnn_state: Tensor


class ActorCritic(NormalizedModel):
    """Actor and critic: two networks, or one with two heads.

    The initial weights follow from `config.seed` alone. The last two numbers of `statistics` [2F + 2] are mean and
    standard deviation of returns.

    Attributes:
        rnn_state_size: size S of the recurrent state of one environment, 0 without a recurrent core.
        return_mean, return_std: [1] views of `statistics`.
    """

    return_mean: Tensor
    return_std: Tensor

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__(spec.observation, config.normalize_input)
        self.distribution: ActionDistribution = make_distribution(spec.action, config.squashes)
        self._is_shared = config.actor_critic_share_weights
        self.nonlinearity = config.nonlinearity
        with restoring_global_generators():
            seed_global_generators(config.seed)
            self.build(config)
        self.has_passes = type(self) is ActorCritic and self._has_perceptrons  # a subclass may compute anything
        self._add_statistics(num_others=1)

    def build(self, config: TrainConfig) -> None:
        """Makes the networks; a subclass may override it (see `docs/custom.md`).

        They are `actor` and `critic` (None if the actor's features are shared), with use_rnn `actor_core` and
        `critic_core`, and the linear `policy_head` and `value_head`.
        """
        self.actor = make_actor_encoder(self.layout, config)
        self.critic = None if self._is_shared else make_encoder(self.layout, config)
        self.actor_core = make_core(self.actor.output_size, config) if config.use_rnn else None
        self.critic_core = None
        if config.use_rnn and self.critic is not None:
            self.critic_core = make_core(self.critic.output_size, config)
        cores = [core for core in (self.actor_core, self.critic_core) if core is not None]
        self._state_sizes = [core.state_size for core in cores]
        self.rnn_state_size = sum(self._state_sizes)
        num_outputs = self.distribution.num_parameters
        self.log_std: nn.Parameter | None = None
        num_stddevs = self.distribution.num_stddevs
        if num_stddevs > 0 and not config.adaptive_stddev:
            num_outputs -= num_stddevs
            self.log_std = nn.Parameter(torch.full((num_stddevs,), math.log(config.initial_stddev)))
        actor, critic = (self.actor_core or self.actor), (self.critic_core or self.critic)
        self.policy_head = nn.Linear(actor.output_size, num_outputs)
        self.value_head = nn.Linear((critic or actor).output_size, 1)
        if config.policy_initialization == "orthogonal":
            initialize_orthogonal(self.policy_head, _POLICY_HEAD_GAIN)
        # Returns are bootstrapped from the first predictions. PopArt keeps predictions in units of rewards. If rewards
        # are small, random first predictions become large weights; clipping their gradient also scales the policy's.
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if num_stddevs > 0 and config.adaptive_stddev:
            with torch.no_grad():
                self.policy_head.bias[self.distribution.stddev_positions] = math.log(config.initial_stddev)

    def _refresh_references(self) -> None:
        super()._refresh_references()
        self.heads: Layers = layers_of([self.policy_head, self.value_head])
        self.return_mean, self.return_std = self.statistics[-2:-1], self.statistics[-1:]

    @property
    def _has_perceptrons(self) -> bool:
        encoders = [self.actor] if self.critic is None else [self.actor, self.critic]
        return all(map(has_perceptron, encoders)) and not self._state_sizes

    def array_networks(self) -> ArrayNetworks:
        """Views of the networks, for `ArrayPolicy`."""
        policy_head, value_head = weights_of(self.heads)
        encoder = None if self.critic is None else encoder_of(self.critic)
        critic = ArrayCritic(encoder, value_head, array_of(self.return_mean), array_of(self.return_std))
        return ArrayNetworks(encoder_of(self.actor), policy_head, self._make_parameters_of(), critic)

    def _make_parameters_of(self) -> ParametersOf:
        log_std = None if self.log_std is None else array_of(self.log_std)
        layout, to_parameters = self.layout, self.distribution.parameter_arrays_of
        if not layout.num_mask:
            return lambda outputs, features, obs: to_parameters(outputs, log_std)
        mask = slice(layout.num_features, layout.num_floats)
        return lambda outputs, features, obs: to_parameters(outputs, log_std, obs[:, mask])

    def inputs_of(self, rows: Tensor, normalize: bool = True) -> Inputs:
        """Inputs of the networks from raw rows `[B, row_size]`."""
        inputs = split_tensor(self.layout, rows)
        return inputs._replace(floats=self.normalize_obs(inputs.floats)) if normalize else inputs

    def normalize_return(self, returns: Tensor) -> Tensor:
        """Returns in the units that the critic predicts."""
        return (returns - self.return_mean) / self.return_std

    @torch.no_grad()
    def renormalize_returns(self, mean: Tensor, std: Tensor) -> None:
        """Sets new statistics of returns (each [1]) without changing any value that the critic predicts.

        The head is rescaled to the new units (van Hasselt et al. 2016, "Learning values across many orders of
        magnitude"). Otherwise the critic's predictions would be wrong after every change of the statistics.
        """
        old_mean, old_std = self.return_mean.clone(), self.return_std.clone()
        self.return_mean.copy_(mean)
        self.return_std.copy_(std)
        weight, bias = self.heads[1]
        weight.mul_(old_std / self.return_std)
        bias.mul_(old_std).add_(old_mean - self.return_mean).div_(self.return_std)

    @torch.no_grad()
    def limit_stddev(self, limit: float) -> None:
        """Lowers standard deviations that are parameters to `limit`, where they are larger."""
        if self.log_std is not None:
            self.log_std.clamp_(max=math.log(limit))

    def denormalize_value(self, normalized_value: Tensor) -> Tensor:
        """Inverse of `normalize_return`."""
        return torch.addcmul(self.return_mean, normalized_value, self.return_std)

    def forward(self, floats: Tensor, pixels: Tensor | None = None) -> ForwardResult:
        """Runs both networks, without a recurrent core, on normalized numbers `[B, F]` and images (see `Inputs`)."""
        inputs = Inputs(floats, pixels)
        features = self.actor(inputs)
        return self._heads(inputs, features, features if self.critic is None else self.critic(inputs))

    def step(self, inputs: Inputs, rnn_state: Tensor) -> tuple[ForwardResult, Tensor]:
        """Runs both networks on B normalized observations, from states `[B, S]`; returns the states after them, too."""
        if not self._state_sizes:
            return self.forward(*inputs), rnn_state
        networks = zip(self._recurrent_networks(), torch.split(rnn_state, self._state_sizes, dim=-1), strict=True)
        features, after = zip(*(core.step(encoder(inputs), state) for (encoder, core), state in networks), strict=True)
        return self._heads(inputs, features[0], features[-1]), torch.cat(after, dim=-1)

    @property
    def unrolls_padded(self) -> bool:
        """Whether `unroll` takes a number of pieces: it is that of this class, with the package's cores."""
        are_known = all(type(core) is RecurrentCore for _, core in self._recurrent_networks())
        return are_known and type(self).unroll is ActorCritic.unroll

    def unroll(self, inputs: Inputs, rnn_state: Tensor, begins: Tensor, num_pieces: int = 0) -> ForwardResult:
        """Runs both networks on sequences of T rows; parameters are `[T * B, P]` and values `[T * B]`.

        Args:
            inputs: normalized observations of T * B rows, in the order of `[T, B]`.
            rnn_state: [B, S], before the first row.
            begins: [T, B] bool, rows that begin an episode.
            num_pieces: for shapes that do not depend on `begins`, see `RecurrentCore.unroll`.
        """
        if not self._state_sizes:
            return self.forward(*inputs)
        room = (num_pieces,) if num_pieces > 0 else ()  # registered cores do not take it
        networks = zip(self._recurrent_networks(), torch.split(rnn_state, self._state_sizes, dim=-1), strict=True)
        features = [
            unrolled(core, encoder(inputs).unflatten(0, begins.shape), state, begins, *room).flatten(0, 1)
            for (encoder, core), state in networks
        ]
        return self._heads(inputs, features[0], features[-1])

    @torch.inference_mode()
    def act(
        self,
        rows: Tensor,
        generator: torch.Generator | None = None,
        rnn_state: Tensor | None = None,
        deterministic: bool = False,
    ) -> ActResult:
        """Chooses actions for raw rows of observations `[B, row_size]`.

        Args:
            rows: the observations.
            generator: on the model's device.
            rnn_state: [B, S], before the observations; zeros by default.
            deterministic: take the policy's mode instead of a draw.
        """
        if rnn_state is None:
            rnn_state = self.statistics.new_zeros(len(rows), self.rnn_state_size)
        result, after = self.step(self.inputs_of(rows), rnn_state)
        action, log_prob = self.distribution.choose(result.action_parameters, generator, deterministic)
        value = self.denormalize_value(result.normalized_value)
        return ActResult(action, log_prob, value, result.action_parameters, after)

    def _recurrent_networks(self) -> list[tuple[Any, Any]]:
        """Encoder and core of the actor, and of the critic if it is a separate network."""
        networks = ((self.actor, self.actor_core), (self.critic, self.critic_core))
        return [(encoder, core) for encoder, core in networks if core is not None]

    def _heads(self, inputs: Inputs, features: Tensor, critic_features: Tensor) -> ForwardResult:
        outputs, value = self._outputs(features, critic_features)
        mask = inputs.floats[:, self.layout.num_features :] if self.layout.num_mask else None
        return ForwardResult(self.distribution.parameters_of(outputs, self.log_std, mask), value)

    def _outputs(self, features: Tensor, critic_features: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of the policy's head `[B, O]`, and normalized values `[B]`; autocast rounds neither."""
        (policy_weight, policy_bias), (value_weight, value_bias) = self.heads
        with without_autocast(features):
            outputs = linear(features.to(policy_weight), policy_weight, policy_bias)
            return outputs, linear(critic_features.to(value_weight), value_weight, value_bias).squeeze(-1)
