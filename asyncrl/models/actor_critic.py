"""The policy and its value function: multilayer perceptrons over normalized observations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, EnvSpec
from asyncrl.models.activations import ACTIVATIONS
from asyncrl.models.distributions import ActionDistribution, make_distribution

OBS_CLIP = 10.0
LOG_STD_RANGE = (-5.0, 5.0)
_POLICY_HEAD_GAIN = 0.01
_Layers = tuple[tuple[Tensor, Tensor], ...]


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
    """

    action: Tensor
    log_prob: Tensor
    value: Tensor
    action_parameters: Tensor


class ActorCritic(nn.Module):
    """Actor and critic, separate or one network with two heads.

    Its initial weights follow from `config.seed` alone. `statistics` is a buffer [2D + 2] float32 that holds, in
    order, the mean (D) and deviation (D) of observations, and the mean and deviation of returns. It is never trained:
    the learner sets it, and it travels with the parameters.
    """

    statistics: Tensor

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        super().__init__()
        self.observation_size = spec.observation_size
        self.distribution: ActionDistribution = make_distribution(spec.action, config.squashes)
        self.normalizes_obs = config.normalize_input
        self.is_gaussian = isinstance(spec.action, BoxAction)
        self._is_shared = config.actor_critic_share_weights
        self.nonlinearity = config.nonlinearity
        self._activation = ACTIVATIONS[config.nonlinearity]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self._build(config)
        size = spec.observation_size
        self.register_buffer("statistics", neutral_statistics(size))
        self._refresh_references()

    def _build(self, config: TrainConfig) -> None:
        widths = [self.observation_size, *config.encoder_mlp_layers]
        self.actor = _make_mlp(widths)
        self.critic = None if self._is_shared else _make_mlp(widths)
        num_outputs = self.distribution.num_parameters
        self.log_std: nn.Parameter | None = None
        if self.is_gaussian and not config.adaptive_stddev:
            num_outputs //= 2
            self.log_std = nn.Parameter(torch.full((num_outputs,), math.log(config.initial_stddev)))
        self.policy_head = nn.Linear(widths[-1], num_outputs)
        self.value_head = nn.Linear(widths[-1], 1)
        if config.policy_initialization == "orthogonal":
            for module in [*self.actor, *(self.critic or [])]:
                _initialize_orthogonal(module, math.sqrt(2.0))
            _initialize_orthogonal(self.policy_head, _POLICY_HEAD_GAIN)
            _initialize_orthogonal(self.value_head, 1.0)
        if self.is_gaussian and config.adaptive_stddev:
            with torch.no_grad():
                self.policy_head.bias[num_outputs // 2 :].fill_(math.log(config.initial_stddev))

    def _apply(self, fn: Any, recurse: bool = True) -> ActorCritic:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh_references()
        return self

    def _refresh_references(self) -> None:
        """Keep weights and views at hand: looking them up in modules costs as much as a small layer's arithmetic."""
        self.actor_layers = _layers_of(self.actor)
        self.critic_layers = _layers_of(self.critic or [])
        self.heads = _layers_of([self.policy_head, self.value_head])
        size, statistics = self.observation_size, self.statistics
        self._obs_mean, self._obs_std = statistics[:size], statistics[size : 2 * size]
        self._return_mean, self._return_std = statistics[-2:-1], statistics[-1:]

    @property
    def obs_mean(self) -> Tensor:
        """[D] view of `statistics`."""
        return self._obs_mean

    @property
    def obs_std(self) -> Tensor:
        """[D] view of `statistics`."""
        return self._obs_std

    @property
    def return_mean(self) -> Tensor:
        """[1] view of `statistics`."""
        return self._return_mean

    @property
    def return_std(self) -> Tensor:
        """[1] view of `statistics`."""
        return self._return_std

    def normalize_obs(self, obs: Tensor, out: Tensor | None = None, statistics: Tensor | None = None) -> Tensor:
        """Observations `[..., D]` in units of their deviation, clipped to +-10; unchanged without `normalize_input`.

        Args:
            obs: raw observations.
            out: where to write them, which may be `obs` itself; a new tensor if not given.
            statistics: [2D] means and deviations to use in place of the model's own.
        """
        if not self.normalizes_obs:
            return unchanged(obs, out)
        mean, std = (self._obs_mean, self._obs_std) if statistics is None else statistics.chunk(2)
        return normalize(obs, mean, std, out)

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
        old_mean, old_std = self._return_mean.clone(), self._return_std.clone()
        self._return_mean.copy_(mean)
        self._return_std.copy_(std)
        weight, bias = self.heads[1]
        weight.mul_(old_std / self._return_std)
        bias.mul_(old_std).add_(old_mean - self._return_mean).div_(self._return_std)

    def denormalize_value(self, normalized_value: Tensor) -> Tensor:
        """Inverse of `normalize_return`."""
        return torch.addcmul(self._return_mean, normalized_value, self._return_std)

    def forward(self, normalized_obs: Tensor) -> ForwardResult:
        """Run both networks on `[B, D]` normalized observations."""
        features = self._run_mlp(self.actor_layers, normalized_obs)
        critic_features = features if self._is_shared else self._run_mlp(self.critic_layers, normalized_obs)
        weight, bias = self.heads[1]
        value = linear(critic_features, weight, bias).squeeze(-1)
        return ForwardResult(self._action_parameters(features), value)

    @torch.inference_mode()
    def act(self, obs: Tensor, generator: torch.Generator | None = None) -> ActResult:
        """Choose actions for raw observations `[B, D] float32` by drawing from the policy."""
        parameters, normalized_value = self.forward(self.normalize_obs(obs))
        action, log_prob = self.distribution.sample(parameters, generator)
        return ActResult(action, log_prob, self.denormalize_value(normalized_value), parameters)

    @torch.inference_mode()
    def act_deterministic(self, obs: Tensor) -> Tensor:
        """Choose the policy's mode for raw observations `[B, D] float32`."""
        features = self._run_mlp(self.actor_layers, self.normalize_obs(obs))
        return self.distribution.mode(self._action_parameters(features))

    def _run_mlp(self, layers: _Layers, features: Tensor) -> Tensor:
        for weight, bias in layers:
            features = self._activation(linear(features, weight, bias))
        return features

    def _action_parameters(self, features: Tensor) -> Tensor:
        weight, bias = self.heads[0]
        outputs = linear(features, weight, bias)
        if not self.is_gaussian:
            return log_softmax(outputs, dim=-1)
        if self.log_std is not None:
            return torch.cat((outputs, self.log_std.expand_as(outputs)), dim=-1)
        mean, log_std = outputs.chunk(2, dim=-1)
        return torch.cat((mean, log_std.clamp(*LOG_STD_RANGE)), dim=-1)


def normalize(obs: Tensor, mean: Tensor, std: Tensor, out: Tensor | None = None) -> Tensor:
    """Observations `[..., D]` in units of their deviation, clipped to +-10, into `out` if given."""
    return torch.sub(obs, mean, out=out).div_(std).clamp_(-OBS_CLIP, OBS_CLIP)


def unchanged(obs: Tensor, out: Tensor | None = None) -> Tensor:
    """Observations as they are, in `out` if given."""
    return obs if out is None or out is obs else out.copy_(obs)


def neutral_statistics(observation_size: int) -> Tensor:
    """Statistics `[2D + 2]` that change nothing: means 0, deviations 1."""
    statistics = torch.zeros(2 * observation_size + 2)
    statistics[observation_size : 2 * observation_size] = 1.0
    statistics[-1] = 1.0
    return statistics


def _make_mlp(widths: list[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(num_in, num_out) for num_in, num_out in zip(widths[:-1], widths[1:], strict=True))


def _initialize_orthogonal(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases (Saxe et al. 2014; gains as in Andrychowicz et al. 2021)."""
    assert isinstance(layer, nn.Linear)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)


def _layers_of(modules: Any) -> _Layers:
    return tuple((module.weight, module.bias) for module in modules)
