"""Action distributions as functions of one parameter tensor `[B, P]`, which is what a slot stores of them.

A Gaussian's parameters are its means and log-deviations (P = 2A), a categorical one's are its normalized logits
(P = n). None of the functions keeps state, so behaviour and current policy are compared by their tensors alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.envs.spec import BoxAction, DiscreteAction

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_NUM_QUADRATURE_NODES = 12


class Sample(NamedTuple):
    """Actions and their log-probabilities `[B]` under the distribution that produced them."""

    action: Tensor
    log_prob: Tensor


FloatArray = npt.NDArray[np.float32]


class ArraySample(NamedTuple):
    """A `Sample` as NumPy arrays, for roles that act on a CPU."""

    action: npt.NDArray[Any]
    log_prob: FloatArray


class ActionDistribution(ABC):
    """A family of distributions over actions.

    Attributes:
        num_parameters: P, elements of one distribution's parameters.
        action_shape: shape of one stored action: (A,) or ().
        action_dtype: float32 (continuous) or int64 (discrete).
    """

    num_parameters: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draw one action for each row of `parameters: [B, P]`; no gradient flows through the draw."""

    @abstractmethod
    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:
        """What `sample` does, on NumPy arrays."""

    @abstractmethod
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        """Log-probability (density) `[B]` of stored actions."""

    @abstractmethod
    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[B]` in nats."""

    @abstractmethod
    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:
        """KL(old || new) `[B]` in nats."""

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """The action that deterministic play takes, in the form in which actions are stored."""


class DiagonalGaussian(ActionDistribution):
    """Independent normal distributions; parameters are A means, then A log-deviations."""

    action_dtype = torch.float32

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.num_parameters = 2 * num_actions
        self.action_shape = (num_actions,)
        self._log_normalizer = num_actions * _HALF_LOG_TWO_PI

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:  # noqa: D102
        mean, log_std = parameters.chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = torch.addcmul(mean, log_std.exp(), noise)
        log_prob = torch.rsub(torch.addcmul(log_std, noise, noise, value=0.5).sum(-1), -self._log_normalizer)
        return Sample(action, log_prob)

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:  # noqa: D102
        mean, log_std = parameters[:, : self.num_actions], parameters[:, self.num_actions :]
        noise = generator.standard_normal(mean.shape, dtype=np.float32)
        action = np.exp(log_std)
        action *= noise
        action += mean
        noise *= noise
        noise *= np.float32(0.5)
        noise += log_std
        log_prob = np.subtract(np.float32(-self._log_normalizer), noise.sum(-1))
        return ArraySample(action, log_prob)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:  # noqa: D102
        mean, log_std = parameters.chunk(2, dim=-1)
        noise = (action - mean) * torch.exp(-log_std)
        return torch.rsub(torch.addcmul(log_std, noise, noise, value=0.5).sum(-1), -self._log_normalizer)

    def entropy(self, parameters: Tensor) -> Tensor:  # noqa: D102
        return parameters[:, self.num_actions :].sum(-1) + (self._log_normalizer + 0.5 * self.num_actions)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:  # noqa: D102
        old_mean, old_log_std = old_parameters.chunk(2, dim=-1)
        new_mean, new_log_std = new_parameters.chunk(2, dim=-1)
        log_ratio = new_log_std - old_log_std
        distance = (new_mean - old_mean) * torch.exp(-new_log_std)
        terms = torch.addcmul(torch.exp(-2.0 * log_ratio), distance, distance)
        return torch.add(log_ratio, terms, alpha=0.5).sum(-1) - 0.5 * self.num_actions

    def mode(self, parameters: Tensor) -> Tensor:  # noqa: D102
        return parameters[:, : self.num_actions].contiguous()


class SquashedGaussian(DiagonalGaussian):
    """Actions tanh(u) in (-1, 1) with u normally distributed (Haarnoja et al. 2018, appendix C).

    The stored action is u, from which everything can be computed without inverting tanh; the environment's adapter
    applies tanh and rescales. Log-probabilities and entropies are densities of tanh(u), in [-1, 1] units.
    """

    def __init__(self, num_actions: int) -> None:
        super().__init__(num_actions)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_QUADRATURE_NODES)
        self._nodes = torch.as_tensor(nodes, dtype=torch.float32)
        self._weights = torch.as_tensor(weights / weights.sum(), dtype=torch.float32)

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:  # noqa: D102
        action, log_prob = super().sample(parameters, generator)
        return Sample(action, log_prob - _log_tanh_slope(action).sum(-1))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:  # noqa: D102
        action, log_prob = super().sample_arrays(parameters, generator)
        slope = np.float32(2.0) * (np.float32(_LOG_TWO) - action - np.logaddexp(np.float32(0.0), -2.0 * action))
        return ArraySample(action, log_prob - slope.sum(-1))

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:  # noqa: D102
        return super().log_prob(parameters, action) - _log_tanh_slope(action).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        """Entropy `[B]` of tanh(u): the Gaussian's, plus E[log d tanh(u)/du] by Gauss-Hermite quadrature.

        Quadrature is free of noise and differentiable; its error is below 0.01 nats an action up to a deviation of 2.
        """
        mean, log_std = parameters.chunk(2, dim=-1)
        nodes, weights = self._nodes.to(mean.device), self._weights.to(mean.device)
        points = torch.addcmul(mean.unsqueeze(-1), log_std.exp().unsqueeze(-1), nodes)
        return super().entropy(parameters) + (_log_tanh_slope(points) @ weights).sum(-1)


class Categorical(ActionDistribution):
    """One of n choices; parameters are logits that the model has normalized (log-probabilities)."""

    action_dtype = torch.int64
    action_shape: tuple[int, ...] = ()

    def __init__(self, num_choices: int) -> None:
        self.num_parameters = num_choices

    def sample(self, parameters: Tensor, generator: torch.Generator | None = None) -> Sample:
        """Draw by an exponential race, p_i / e_i: one argmax in place of a cumulative sum (Gumbel-max)."""
        race = torch.empty_like(parameters).exponential_(generator=generator).log_()
        action = torch.argmax(parameters - race, dim=-1)
        return Sample(action, self.log_prob(parameters, action))

    def sample_arrays(self, parameters: FloatArray, generator: np.random.Generator) -> ArraySample:  # noqa: D102
        race = generator.standard_exponential(parameters.shape, dtype=np.float32)
        np.maximum(race, np.finfo(np.float32).tiny, out=race)
        action = np.argmax(parameters - np.log(race, out=race), axis=-1)
        return ArraySample(action, np.take_along_axis(parameters, action[:, None], axis=-1)[:, 0])

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:  # noqa: D102
        return parameters.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, parameters: Tensor) -> Tensor:  # noqa: D102
        return -(parameters.exp() * parameters).sum(-1)

    def kl(self, old_parameters: Tensor, new_parameters: Tensor) -> Tensor:  # noqa: D102
        return (old_parameters.exp() * (old_parameters - new_parameters)).sum(-1)

    def mode(self, parameters: Tensor) -> Tensor:  # noqa: D102
        return torch.argmax(parameters, dim=-1)


def make_distribution(action: BoxAction | DiscreteAction, squash: bool) -> ActionDistribution:
    """Choose the distribution that fits the action space."""
    if isinstance(action, DiscreteAction):
        return Categorical(action.n)
    return SquashedGaussian(action.size) if squash else DiagonalGaussian(action.size)


def _log_tanh_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) in the form that neither overflows nor rounds to log(0) for large |u|."""
    return 2.0 * (_LOG_TWO - raw - torch.nn.functional.softplus(-2.0 * raw))
