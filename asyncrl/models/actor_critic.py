"""The policy and its value function over rows of observations: encoders, an optional recurrent core, and heads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.distributions import ActionDistribution, make_distribution
from asyncrl.models.encoders import (
    Inputs,
    Layers,
    ObservationEncoder,
    initialize_orthogonal,
    layers_of,
    split_tensor,
)
from asyncrl.models.registry import make_core, make_encoder

OBS_CLIP = 10.0
_POLICY_HEAD_GAIN = 0.01


class ForwardResult(NamedTuple):
    """Distribution parameters `[B, P]` and values `[B]`, the latter in units of normalized returns."""

    action_parameters: Tensor
    normalized_value: Tensor


class ActResult(NamedTuple):
    """What acting on `[B]` observations gives, in the form in which slots store it.

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


class ActorCritic(nn.Module):
    """Actor and critic, separate or one network with two heads.

    Its initial weights follow from `config.seed` alone. `statistics` is a buffer [2F + 2] float32 that holds, in
    order, the mean (F) and deviation (F) of an observation's numbers, and the mean and deviation of returns. It is
    never trained: the learner sets it, and it travels with the parameters.

    Attributes:
        layout: what the rows of observations hold.
        rnn_state_size: numbers S of the recurrent state of one environment, 0 without a recurrent core.
        obs_mean, obs_std: [F] views of `statistics`.
        return_mean, return_std: [1] views of `statistics`.
    """

    statistics: Tensor
    obs_mean: Tensor
    obs_std: Tensor
    return_mean: Tensor
    return_std: Tensor

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__()
        self.layout = spec.observation
        self.observation_size = spec.observation_size
        self.distribution: ActionDistribution = make_distribution(spec.action, config.squashes)
        self.normalizes_obs = config.normalize_input
        self._is_shared = config.actor_critic_share_weights
        self.nonlinearity = config.nonlinearity
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.build(config)
        self.register_buffer("statistics", neutral_statistics(self.observation_size, 1))
        self._refresh_references()

    def build(self, config: TrainConfig) -> None:
        """Makes the networks; a model of a user's own may make others here (see `docs/custom.md`).

        They are `actor` and `critic` (None where they are one), with use_rnn `actor_core` and `critic_core`, and the
        linear `policy_head` and `value_head`.
        """
        self.actor = make_encoder(self.layout, config)
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
        num_deviations = self.distribution.num_deviations
        if num_deviations > 0 and not config.adaptive_stddev:
            num_outputs -= num_deviations
            self.log_std = nn.Parameter(torch.full((num_deviations,), math.log(config.initial_stddev)))
        actor, critic = (self.actor_core or self.actor), (self.critic_core or self.critic)
        self.policy_head = nn.Linear(actor.output_size, num_outputs)
        self.value_head = nn.Linear((critic or actor).output_size, 1)
        if config.policy_initialization == "orthogonal":
            initialize_orthogonal(self.policy_head, _POLICY_HEAD_GAIN)
        # Returns are bootstrapped from the first predictions. PopArt keeps predictions in units of rewards, so where
        # rewards are small, arbitrary ones become large weights, whose gradient is clipped and the policy's with it.
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if num_deviations > 0 and config.adaptive_stddev:
            with torch.no_grad():
                self.policy_head.bias[self.distribution.deviation_positions] = math.log(config.initial_stddev)

    def _apply(self, fn: Any, recurse: bool = True) -> ActorCritic:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh_references()
        return self

    def _refresh_references(self) -> None:
        """Keep weights and views at hand: looking them up in modules costs as much as a small layer's arithmetic."""
        self.heads: Layers = layers_of([self.policy_head, self.value_head])
        size, statistics = self.observation_size, self.statistics
        self.obs_mean, self.obs_std = statistics[:size], statistics[size : 2 * size]
        self.return_mean, self.return_std = statistics[-2:-1], statistics[-1:]
        self._normalized = None
        if not all(self.layout.normalized):
            self._normalized = torch.tensor(self.layout.normalized, device=statistics.device)

    @property
    def runs_in_arrays(self) -> bool:
        """Whether `asyncrl.models.array_policy` can act for it: perceptrons over numbers, without a recurrent core."""
        encoders = [self.actor] if self.critic is None else [self.actor, self.critic]
        are_known = all(type(encoder) is ObservationEncoder and encoder.vector_keys is not None for encoder in encoders)
        return are_known and type(self) is ActorCritic and not self._state_sizes

    def inputs_of(self, rows: Tensor, normalize: bool = True) -> Inputs:
        """What the networks see of raw rows `[B, row_size]`."""
        inputs = split_tensor(self.layout, rows)
        return inputs._replace(floats=self.normalize_obs(inputs.floats)) if normalize else inputs

    def normalize_obs(self, obs: Tensor, out: Tensor | None = None, statistics: Tensor | None = None) -> Tensor:
        """Numbers `[..., F]` in units of their deviation, clipped to +-10; unchanged without `normalize_input`.

        Args:
            obs: raw numbers of observations.
            out: where to write them, which may be `obs` itself; a new tensor if not given.
            statistics: [2F] means and deviations to use in place of the model's own.
        """
        if not self.normalizes_obs:
            return obs if out is None or out is obs else out.copy_(obs)
        mean, std = (self.obs_mean, self.obs_std) if statistics is None else statistics.chunk(2)
        return normalize(obs, mean, std, out)

    def set_obs_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Puts new statistics `[F]` in force; choices, flags and masks stay as they are."""
        if self._normalized is not None:
            mask = self._normalized.to(mean.device)
            mean, std = mean.where(mask, 0.0), std.where(mask, 1.0)
        self.obs_mean.copy_(mean)
        self.obs_std.copy_(std)

    def normalize_return(self, returns: Tensor) -> Tensor:
        """Returns in the units that the critic predicts."""
        return (returns - self.return_mean) / self.return_std

    @torch.no_grad()
    def renormalize_returns(self, mean: Tensor, std: Tensor) -> None:
        """Puts new statistics of returns (each [1]) in force without changing any value that the critic predicts.

        The head is rescaled to the new units (van Hasselt et al. 2016, "Learning values across many orders of
        magnitude"). Without this, a critic trained under old statistics is wrong under new ones, and the older the
        data that it is trained on, the more.
        """
        old_mean, old_std = self.return_mean.clone(), self.return_std.clone()
        self.return_mean.copy_(mean)
        self.return_std.copy_(std)
        weight, bias = self.heads[1]
        weight.mul_(old_std / self.return_std)
        bias.mul_(old_std).add_(old_mean - self.return_mean).div_(self.return_std)

    def denormalize_value(self, normalized_value: Tensor) -> Tensor:
        """Inverse of `normalize_return`."""
        return torch.addcmul(self.return_mean, normalized_value, self.return_std)

    def forward(self, floats: Tensor, pixels: Tensor | None = None) -> ForwardResult:
        """Run both networks, which are not recurrent, on normalized observations.

        Args:
            floats: [B, F], their numbers.
            pixels: [B, pixels] uint8, their images, if they have any.
        """
        inputs = Inputs(floats, pixels)
        features = self.actor(inputs)
        return self._heads(inputs, features, features if self.critic is None else self.critic(inputs))

    def step(self, inputs: Inputs, rnn_state: Tensor) -> tuple[ForwardResult, Tensor]:
        """Run both networks on B normalized observations.

        Args:
            inputs: the observations.
            rnn_state: [B, S], before them.

        Returns:
            What `forward` does, and the states after them.
        """
        if not self._state_sizes:
            return self.forward(*inputs), rnn_state
        assert self.actor_core is not None
        states = torch.split(rnn_state, self._state_sizes, dim=-1)
        features, after = self.actor_core.step(self.actor(inputs), states[0])
        if self.critic is None or self.critic_core is None:
            return self._heads(inputs, features, features), after
        critic_features, critic_after = self.critic_core.step(self.critic(inputs), states[1])
        return self._heads(inputs, features, critic_features), torch.cat((after, critic_after), dim=-1)

    def unroll(self, inputs: Inputs, rnn_state: Tensor, begins: Tensor) -> ForwardResult:
        """Run both networks on sequences of T rows.

        Args:
            inputs: the normalized observations of T * B rows, those of one time side by side.
            rnn_state: [B, S], before the first row.
            begins: [T, B] bool, rows that begin an episode.

        Returns:
            Parameters `[T * B, P]` and values `[T * B]`.
        """
        if not self._state_sizes:
            return self.forward(*inputs)
        assert self.actor_core is not None
        shape, states = begins.shape, torch.split(rnn_state, self._state_sizes, dim=-1)
        features = self.actor_core.unroll(self.actor(inputs).unflatten(0, shape), states[0], begins).flatten(0, 1)
        if self.critic is None or self.critic_core is None:
            return self._heads(inputs, features, features)
        encoded = self.critic(inputs).unflatten(0, shape)
        return self._heads(inputs, features, self.critic_core.unroll(encoded, states[1], begins).flatten(0, 1))

    @torch.inference_mode()
    def act(
        self,
        rows: Tensor,
        generator: torch.Generator | None = None,
        rnn_state: Tensor | None = None,
        deterministic: bool = False,
    ) -> ActResult:
        """Choose actions for raw rows of observations `[B, row_size]`.

        Args:
            rows: the observations.
            generator: of random numbers, on the model's device.
            rnn_state: [B, S], before them; zeros if not given.
            deterministic: take the policy's mode instead of drawing from it.
        """
        if rnn_state is None:
            rnn_state = self.statistics.new_zeros(len(rows), self.rnn_state_size)
        result, after = self.step(self.inputs_of(rows), rnn_state)
        action, log_prob = self.distribution.choose(result.action_parameters, generator, deterministic)
        value = self.denormalize_value(result.normalized_value)
        return ActResult(action, log_prob, value, result.action_parameters, after)

    def _heads(self, inputs: Inputs, features: Tensor, critic_features: Tensor) -> ForwardResult:
        (policy_weight, policy_bias), (value_weight, value_bias) = self.heads
        outputs = linear(features, policy_weight, policy_bias)
        mask = inputs.floats[:, self.layout.num_features :] if self.layout.num_mask else None
        parameters = self.distribution.parameters_of(outputs, self.log_std, mask)
        return ForwardResult(parameters, linear(critic_features, value_weight, value_bias).squeeze(-1))


def normalize(obs: Tensor, mean: Tensor, std: Tensor, out: Tensor | None = None) -> Tensor:
    """Numbers `[..., F]` in units of their deviation, clipped to +-10, into `out` if given."""
    return torch.sub(obs, mean, out=out).div_(std).clamp_(-OBS_CLIP, OBS_CLIP)


def neutral_statistics(observation_size: int, num_others: int = 0) -> Tensor:
    """Statistics that change nothing, means 0 and deviations 1: `[2F]` of observations, then those of others."""
    pairs = [(torch.zeros(size), torch.ones(size)) for size in (observation_size, num_others)]
    return torch.cat([tensor for pair in pairs for tensor in pair])
