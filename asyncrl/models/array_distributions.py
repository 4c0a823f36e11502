"""Action distributions in NumPy with their gradients in closed form: what `asyncrl.models.distributions` computes.

Samples are last, `[P, B]`: NumPy is quick along long rows, and there are few actions.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.array_networks import gradient_of
from asyncrl.models.array_policy import FloatArray, array_of
from asyncrl.models.distributions import (
    FORBIDDEN,
    LOG_STD_RANGE,
    Categorical,
    DiagonalGaussian,
    is_forbidden,
)


class ArrayDistribution(Protocol):
    """A distribution over the actions of one minibatch. `log_prob` comes first; the others are of the same samples."""

    def log_prob(self, outputs: FloatArray, action: npt.NDArray[Any], mask: FloatArray | None) -> FloatArray:
        """Log-probabilities `[B]` of actions `[B, ...]`.

        Args:
            outputs: [P, B], of the network, perhaps without log-deviations; they may be overwritten.
            action: what was done.
            mask: [B, P], 0 for choices that are not allowed.
        """

    def mean_entropy(self) -> float:
        """In nats."""

    def mean_kl(self, reference: FloatArray) -> float:
        """KL(reference || policy) in nats; `reference` are the distribution's parameters `[B, P]`."""

    def backward(self, log_prob_gradient: FloatArray, entropy_coeff: float, kl_coeff: float) -> FloatArray:
        """Returns the gradient of the outputs, and writes that of log-deviations that are parameters.

        Args:
            log_prob_gradient: [B], derivatives of the loss by the log-probabilities.
            entropy_coeff: derivative of the loss by the mean entropy; if it is not 0, `mean_entropy` came before.
            kl_coeff: derivative of the loss by the mean divergence; if it is not 0, `mean_kl` came before.
        """


class ArrayGaussian:
    """`DiagonalGaussian`. With s the log-deviation and z = (a - mean) / exp(s):

    log p = -sum(s + z^2 / 2) + const, so d log p / d mean = z / exp(s) and d log p / ds = z^2 - 1;
    entropy = sum(s) + const, so its derivative by s is 1;
    KL(old || new) = sum(s - s_old + (t - 1) / 2) with t = exp(2 s_old - 2 s) + d^2 and d = (mean - mean_old) / exp(s),
    so its derivative by the mean is d / exp(s), and that by s is 1 - t.
    """

    def __init__(self, distribution: DiagonalGaussian, log_std: Tensor | None) -> None:
        """Takes the parameter `[A]` that log-deviations are; None where they are outputs of the network."""
        self._num_actions = distribution.num_actions
        self._log_normalizer = 0.5 * math.log(2.0 * math.pi) * distribution.num_actions
        self._own = None if log_std is None else (array_of(log_std), gradient_of(log_std))

    def log_prob(self, outputs: FloatArray, action: npt.NDArray[Any], mask: FloatArray | None) -> FloatArray:
        """See `ArrayDistribution`."""
        self._mean, self._raw = outputs[: self._num_actions], outputs[self._num_actions :]
        low, high = LOG_STD_RANGE
        # [A, 1] or [A, B]
        self._log_std = self._own[0][:, None] if self._own else np.minimum(np.maximum(self._raw, low), high)
        self._precision = np.exp(-self._log_std)
        self._noise = action.T - self._mean
        self._noise *= self._precision
        self._square = self._noise * self._noise
        log_prob: FloatArray = np.add.reduce(self._square, axis=0)
        log_prob *= -0.5
        log_prob -= np.add.reduce(self._log_std, axis=0) + self._log_normalizer
        return log_prob

    def mean_entropy(self) -> float:
        """See `ArrayDistribution`."""
        total: Any = np.add.reduce(self._log_std, axis=None)
        constant = self._log_normalizer + 0.5 * self._num_actions
        return float(total) / int(self._log_std.shape[1]) + constant

    def mean_kl(self, reference: FloatArray) -> float:
        """See `ArrayDistribution`."""
        old_mean, old_log_std = reference.T[: self._num_actions], reference.T[self._num_actions :]
        log_ratio = self._log_std - old_log_std
        self._distance = (self._mean - old_mean) * self._precision
        self._excess = np.exp(-2.0 * log_ratio)
        self._excess += self._distance * self._distance
        self._excess -= 1.0
        total: Any = np.add.reduce(log_ratio + 0.5 * self._excess, axis=None)
        return float(total) / len(reference)

    def backward(self, log_prob_gradient: FloatArray, entropy_coeff: float, kl_coeff: float) -> FloatArray:
        """See `ArrayDistribution`."""
        num_samples = len(log_prob_gradient)
        mean_gradient: FloatArray = self._noise
        mean_gradient *= log_prob_gradient
        log_std_gradient: FloatArray = self._square
        log_std_gradient -= 1.0
        log_std_gradient *= log_prob_gradient
        if entropy_coeff:
            log_std_gradient += entropy_coeff / num_samples
        if kl_coeff:
            mean_gradient += self._distance * (kl_coeff / num_samples)
            log_std_gradient -= self._excess * (kl_coeff / num_samples)
        mean_gradient *= self._precision
        if self._own:
            np.add.reduce(log_std_gradient, axis=1, out=self._own[1])
            return mean_gradient
        log_std_gradient[self._log_std != self._raw] = 0.0  # clamped
        return np.concatenate((mean_gradient, log_std_gradient))


class ArrayCategorical:
    """`Categorical`. With l the normalized logits, p = exp(l), and o the network's outputs:

    d log p(a) / do = onehot(a) - p; entropy H = -sum(p l), so dH/do = -p (l + H);
    KL(old || new) = sum(p_old (l_old - l)), so its derivative by o is p - p_old.
    """

    def log_prob(self, outputs: FloatArray, action: npt.NDArray[Any], mask: FloatArray | None) -> FloatArray:
        """See `ArrayDistribution`."""
        self._forbidden = None if mask is None else is_forbidden(mask).T
        if self._forbidden is not None:
            outputs[self._forbidden] = FORBIDDEN
        outputs -= np.maximum.reduce(outputs, axis=0)
        outputs -= np.log(np.add.reduce(np.exp(outputs), axis=0))
        self._logits, self._probabilities = outputs, np.exp(outputs)
        self._chosen = action, np.arange(len(action))
        log_prob: FloatArray = outputs[self._chosen]
        return log_prob

    def mean_entropy(self) -> float:
        """See `ArrayDistribution`."""
        self._entropy = -np.add.reduce(self._probabilities * self._logits, axis=0)
        return float(np.add.reduce(self._entropy)) / len(self._entropy)

    def mean_kl(self, reference: FloatArray) -> float:
        """See `ArrayDistribution`."""
        self._reference = np.exp(reference.T)
        total: Any = np.add.reduce(self._reference * (reference.T - self._logits), axis=None)
        return float(total) / len(reference)

    def backward(self, log_prob_gradient: FloatArray, entropy_coeff: float, kl_coeff: float) -> FloatArray:
        """See `ArrayDistribution`."""
        num_samples = len(log_prob_gradient)
        gradient: FloatArray = self._probabilities * -log_prob_gradient
        gradient[self._chosen] += log_prob_gradient
        if entropy_coeff:
            gradient -= self._probabilities * (self._logits + self._entropy) * (entropy_coeff / num_samples)
        if kl_coeff:
            gradient += (self._probabilities - self._reference) * (kl_coeff / num_samples)
        if self._forbidden is not None:
            gradient[self._forbidden] = 0.0
        return gradient


def has_array_distribution(model: ActorCritic) -> bool:
    """Whether `make_array_distribution` knows the model's distribution."""
    return type(model.distribution) in (DiagonalGaussian, Categorical)


def make_array_distribution(model: ActorCritic) -> ArrayDistribution:
    """The pass through the model's distribution."""
    if isinstance(model.distribution, DiagonalGaussian):
        return ArrayGaussian(model.distribution, model.log_std)
    return ArrayCategorical()
