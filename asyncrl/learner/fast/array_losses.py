"""The policy losses of PPO and A2C in NumPy, each with its gradient."""

from __future__ import annotations

import numpy as np

from asyncrl.algorithms.losses import LossOfSamples
from asyncrl.algorithms.ppo import clip_range
from asyncrl.config.schema import TrainConfig
from asyncrl.models.arrays import FloatArray


def ppo_policy_loss(
    log_prob: FloatArray, old_log_prob: FloatArray, advantages: FloatArray, config: TrainConfig
) -> LossOfSamples:
    """`asyncrl.algorithms.ppo.ppo_policy_loss` and its gradient with respect to the log-probabilities.

    The gradient is -r A where the ratio is not clipped.

    Args:
        log_prob: [B], of the current policy.
        old_log_prob: [B], of the policy it is kept close to.
        advantages: [B].
        config: the bounds of the ratio.
    """
    clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode)
    ratio = np.exp(log_prob - old_log_prob)
    surrogate = ratio * advantages
    np.minimum(np.maximum(ratio, clip.low, out=ratio), clip.high, out=ratio)
    clipped = np.multiply(ratio, advantages, out=ratio)
    # A product, not a choice: as in autograd the gradient of an infinite ratio is NaN, and the step is left out.
    gradient = surrogate * (surrogate <= clipped)
    gradient *= -1.0 / len(gradient)
    return LossOfSamples(-float(np.add.reduce(np.minimum(surrogate, clipped, out=surrogate))) / len(gradient), gradient)


def a2c_policy_loss(
    log_prob: FloatArray, old_log_prob: FloatArray, advantages: FloatArray, config: TrainConfig
) -> LossOfSamples:
    """`asyncrl.algorithms.a2c.a2c_policy_loss`, and its gradient with respect to the log-probabilities; all [B]."""
    num_samples = len(advantages)
    return LossOfSamples(-float(np.add.reduce(log_prob * advantages)) / num_samples, advantages * (-1.0 / num_samples))
