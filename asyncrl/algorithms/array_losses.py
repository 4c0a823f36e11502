"""The losses of `asyncrl.algorithms.losses` with their gradients in closed form, in NumPy, for updates on a CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.algorithms.losses import ClipRange

FloatArray = npt.NDArray[np.float32]


class LossOfSamples(NamedTuple):
    """A loss, which is a mean over B samples, and its gradient `[B] float32` with respect to each sample's input."""

    mean: float
    gradient: FloatArray


def ppo_policy_loss(log_ratio: FloatArray, advantages: FloatArray, clip: ClipRange) -> LossOfSamples:
    """`losses.ppo_policy_loss`, and its gradient with respect to the log-ratios: -r A where the ratio is not clipped.

    Args:
        log_ratio: [B], log-probability of the current policy minus that of the policy that is its reference.
        advantages: [B].
        clip: bounds of the ratio.
    """
    ratio = np.exp(log_ratio)
    surrogate = ratio * advantages
    np.minimum(np.maximum(ratio, clip.low, out=ratio), clip.high, out=ratio)
    clipped = np.multiply(ratio, advantages, out=ratio)
    # A product, not a choice: as in autograd the gradient of an infinite ratio is NaN, and the step is left out.
    gradient = surrogate * (surrogate <= clipped)
    gradient *= -1.0 / len(gradient)
    return LossOfSamples(-_mean(np.minimum(surrogate, clipped, out=surrogate)), gradient)


def a2c_policy_loss(log_prob: FloatArray, advantages: FloatArray) -> LossOfSamples:
    """`losses.a2c_policy_loss`, and its gradient with respect to the log-probabilities; both [B]."""
    return LossOfSamples(-_mean(log_prob * advantages), advantages * (-1.0 / len(advantages)))


def squared_value_loss(values: FloatArray, returns: FloatArray) -> LossOfSamples:
    """`losses.squared_value_loss`, and its gradient with respect to the values; both [B]."""
    error = values - returns
    return LossOfSamples(_mean_square(error), error * (2.0 / len(error)))


def clipped_value_loss(values: FloatArray, old_values: FloatArray, returns: FloatArray, clip: float) -> LossOfSamples:
    """`losses.clipped_value_loss`, and its gradient with respect to the values; all [B].

    The gradient is that of the plain error, and 0 where the clipped one is larger and does not move with the value.
    """
    error, change = values - returns, values - old_values
    clipped = np.minimum(np.maximum(change, -clip), clip)
    is_within = clipped == change
    clipped += old_values - returns
    square, clipped_square = error * error, np.square(clipped, out=clipped)
    counts = is_within | (square >= clipped_square)
    gradient = error * counts
    gradient *= 2.0 / len(gradient)
    return LossOfSamples(_mean(np.maximum(square, clipped_square, out=square)), gradient)


def _mean(numbers: FloatArray) -> float:
    """A third of the time of `numpy.mean`, whose wrapper takes longer than the sum of a minibatch."""
    total: Any = np.add.reduce(numbers)
    return float(total) / len(numbers)


def _mean_square(numbers: FloatArray) -> float:
    return float(np.dot(numbers, numbers)) / len(numbers)
