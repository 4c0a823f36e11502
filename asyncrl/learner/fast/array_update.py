"""Optimizer steps in NumPy: an accelerator that computes the same as the algorithm's loss and autograd.

A 64-64 network and a minibatch of a few hundred samples need little arithmetic. A step by autograd spends most of its
time on calls, graph nodes and allocations. Here forward and backward passes are written out, on the same parameters and
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.algorithms.losses import NUM_LOSS_METRICS, Samples, needs_kl
from asyncrl.algorithms.ppo import clip_range
from asyncrl.config.algorithms import imported
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam
from asyncrl.learner.ranks import Ranks
from asyncrl.models import products
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.arrays import Columns, FloatArray, array_of
from asyncrl.models.distributions import (
    FORBIDDEN,
    HALF_LOG_TWO_PI,
    LOG_STD_RANGE,
    Categorical,
    DiagonalGaussian,
    is_forbidden,
)
from asyncrl.models.encoders import ObservationEncoder, PartialEncoder
from asyncrl.models.flat import FlatParameters
from asyncrl.models.mlp_pass import ACTIVATION_GRADIENTS


class ArrayGaussian:
    """`DiagonalGaussian`. With s the log standard deviation and z = (a - mean) / exp(s):

    log p = -sum(s + z^2 / 2) + const, so d log p / d mean = z / exp(s) and d log p / ds = z^2 - 1;
    entropy = sum(s) + const, so its derivative by s is 1;
    KL(old || new) = sum(s - s_old + (t - 1) / 2) with t = exp(2 s_old - 2 s) + d^2 and d = (mean - mean_old) / exp(s),
    so its derivative by the mean is d / exp(s), and that by s is 1 - t.
    """

    def __init__(self, distribution: DiagonalGaussian, log_std: Tensor | None) -> None:
        """`log_std` is the parameter `[A]` of the log standard deviations; None if they are outputs of the network."""
        self._num_actions = distribution.num_actions
        self._log_normalizer = distribution.num_actions * HALF_LOG_TWO_PI
        self._own = None if log_std is None else (array_of(log_std), gradient_of(log_std))

    def log_prob(self, outputs: FloatArray, action: npt.NDArray[Any], mask: FloatArray | None) -> FloatArray:
        """Log-probabilities `[B]` of actions `[B, ...]`; the other methods are about the same samples.

        Args:
            outputs: [P, B], of the network, perhaps without log standard deviations; they may be overwritten. Samples
            are the
                last dimension because NumPy is fast along long rows.
            action: the actions.
            mask: [B, P], 0 for choices that are not allowed.
        """
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
        """In nats."""
        total: Any = np.add.reduce(self._log_std, axis=None)
        constant = self._log_normalizer + 0.5 * self._num_actions
        return float(total) / int(self._log_std.shape[1]) + constant

    def mean_kl(self, reference: FloatArray) -> float:
        """KL(reference || policy) in nats; `reference` are the distribution's parameters `[B, P]`."""
        old_mean, old_log_std = reference.T[: self._num_actions], reference.T[self._num_actions :]
        log_ratio = self._log_std - old_log_std
        self._distance = (self._mean - old_mean) * self._precision
        self._excess = np.exp(-2.0 * log_ratio)
        self._excess += self._distance * self._distance
        self._excess -= 1.0
        total: Any = np.add.reduce(log_ratio + 0.5 * self._excess, axis=None)
        return float(total) / len(reference)

    def backward(self, log_prob_gradient: FloatArray, entropy_coeff: float, kl_coeff: float) -> FloatArray:
        """Returns the gradient of the outputs, and writes that of log standard deviations that are parameters.

        Args:
            log_prob_gradient: [B], derivatives of the loss by the log-probabilities.
            entropy_coeff: derivative of the loss by the mean entropy; if not 0, call `mean_entropy` before.
            kl_coeff: derivative of the loss by the mean divergence; if not 0, call `mean_kl` before.
        """
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
        self._entropy = -np.add.reduce(self._probabilities * self._logits, axis=0)
        return float(np.add.reduce(self._entropy)) / len(self._entropy)

    def mean_kl(self, reference: FloatArray) -> float:
        self._reference = np.exp(reference.T)
        total: Any = np.add.reduce(self._reference * (reference.T - self._logits), axis=None)
        return float(total) / len(reference)

    def backward(self, log_prob_gradient: FloatArray, entropy_coeff: float, kl_coeff: float) -> FloatArray:
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


class LossOfSamples(NamedTuple):
    """A loss, which is a mean over B samples, and its gradient `[B] float32` with respect to each sample's input."""

    mean: float
    gradient: FloatArray


class TrainedLayer(NamedTuple):
    """Views of a layer's parameters and of their gradients: `[out, in]` and `[out]`."""

    weight: FloatArray
    bias: FloatArray
    weight_gradient: FloatArray
    bias_gradient: FloatArray


class ArrayEncoder:
    """The perceptron over the numbers of an observation. A backward pass belongs to the latest forward pass."""

    def __init__(self, encoder: ObservationEncoder | PartialEncoder, nonlinearity: str) -> None:
        """The encoder has no images; its parameters must be flat already (`FlatParameters`)."""
        assert encoder.perceptron is not None
        self._columns: Columns
        self._columns, layers = encoder.perceptron
        self._layers = [_trained(*layer) for layer in layers]
        self._activate = _ACTIVATIONS[nonlinearity]
        self._activation_gradient = ACTIVATION_GRADIENTS[nonlinearity]
        self._features: list[FloatArray] = []  # the inputs and the features of each layer
        self._gradients: list[FloatArray] = []
        self._ones = np.empty(0, np.float32)

    def forward(self, floats: FloatArray) -> FloatArray:
        """From normalized numbers `[B, F]` to features `[B, out]`, which the next pass overwrites."""
        num_samples, layers = len(floats), self._layers
        if len(self._ones) != num_samples or not self._features:
            # Kept between passes: the kernel maps new arrays of this size page by page.
            self._ones = np.ones(num_samples, np.float32)
            self._features = [floats, *(np.empty((num_samples, len(layer.bias)), np.float32) for layer in layers)]
            self._gradients = [np.empty((num_samples, layer.weight.shape[1]), np.float32) for layer in layers]
        features = self._features
        features[0] = floats[:, self._columns]
        for depth, layer in enumerate(layers):
            outputs = products.dot(features[depth], layer.weight.T, out=features[depth + 1])
            outputs += layer.bias
            self._activate(outputs, outputs)
        return features[-1]

    def backward(self, gradient: FloatArray) -> None:
        """Writes the parameters' gradients from that of the features, `[B, out]`, which is overwritten."""
        for depth in reversed(range(len(self._layers))):
            layer, features = self._layers[depth], self._features
            self._activation_gradient(torch.from_numpy(gradient), torch.from_numpy(features[depth + 1]))
            products.dot_of_rows(gradient, features[depth], out=layer.weight_gradient)
            np.dot(self._ones, gradient, out=layer.bias_gradient)  # a sum, in a fifth of the time
            if depth > 0:
                gradient = products.dot(gradient, layer.weight, out=self._gradients[depth])


def _relu(features: FloatArray, out: FloatArray) -> None:
    torch.relu_(torch.from_numpy(out))


def _elu(features: FloatArray, out: FloatArray) -> None:
    torch.nn.functional.elu(torch.from_numpy(out), inplace=True)


# By the name in the settings; called with the same array twice, which they change in place. NumPy's tanh is three times
# as fast as PyTorch's.
_ACTIVATIONS: dict[str, Callable[[FloatArray, FloatArray], Any]] = {"tanh": np.tanh, "relu": _relu, "elu": _elu}


def _trained(weight: Tensor, bias: Tensor) -> TrainedLayer:
    return TrainedLayer(array_of(weight), array_of(bias), gradient_of(weight), gradient_of(bias))


def gradient_of(parameter: Tensor) -> FloatArray:
    """A view of a parameter's gradient on the CPU."""
    if parameter.grad is None:
        raise RuntimeError("passes in arrays write gradients: make the parameters flat with gradients first")
    return array_of(parameter.grad)


def clipped_value_loss(values: FloatArray, old_values: FloatArray, returns: FloatArray, clip: float) -> LossOfSamples:
    """`losses.clipped_value_loss`, and its gradient with respect to the values; all [B].

    The gradient is that of the plain error, and 0 where the clipped one is larger and does not depend on the value.
    """
    error, change = values - returns, values - old_values
    clipped = np.minimum(np.maximum(change, -clip), clip)
    is_within = clipped == change
    clipped += old_values - returns
    square, clipped_square = error * error, np.square(clipped, out=clipped)
    counts = is_within | (square >= clipped_square)
    gradient = error * counts
    gradient *= 2.0 / len(gradient)
    return LossOfSamples(float(np.add.reduce(np.maximum(square, clipped_square, out=square))) / len(error), gradient)


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


class ArrayUpdate:
    """Takes one optimizer step for each minibatch."""

    @staticmethod
    def fits(model: ActorCritic, config: TrainConfig, device: torch.device) -> bool:
        """Whether it computes the updates of such a run.

        A learner with several threads has much arithmetic in a minibatch; autograd uses the threads, NumPy does not.
        """
        return (
            config.algorithm.array_policy_loss is not None
            and device.type == "cpu"
            and config.precision != "bf16"
            and torch.get_num_threads() == 1
            and model.has_passes
            and type(model.distribution) in (DiagonalGaussian, Categorical)
        )

    def __init__(
        self, model: ActorCritic, flat: FlatParameters, optimizer: FlatAdam, ranks: Ranks, config: TrainConfig
    ) -> None:
        """Prepares for a model that fits and whose parameters are `flat`."""
        self._gradient = flat.grad
        self._gradient_array: FloatArray = self._gradient.numpy()
        self._actor = ArrayEncoder(model.actor, model.nonlinearity)
        self._critic = None if model.critic is None else ArrayEncoder(model.critic, model.nonlinearity)
        self._policy_head, self._value_head = (_trained(*layer) for layer in model.heads)
        gaussian = model.distribution if isinstance(model.distribution, DiagonalGaussian) else None
        self._distribution: ArrayGaussian | ArrayCategorical = (
            ArrayCategorical() if gaussian is None else ArrayGaussian(gaussian, model.log_std)
        )
        layout = model.layout
        self._mask = slice(layout.num_features, layout.num_floats) if layout.num_mask else None
        self._policy_loss = imported(config.algorithm.array_policy_loss)
        self._needs_kl = needs_kl(config)
        self._optimizer = optimizer
        self._ranks = ranks
        self.config = config
        self._found_inf = {False: torch.zeros(()), True: torch.ones(())}

    @np.errstate(all="ignore")
    def __call__(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Takes one step, or leaves it out if the loss or the gradient is not finite.

        Returns `[7]`: the scalars of `LossMetrics`, and the norm of the gradient before clipping; and log-ratios `[N]`.
        """
        num_samples = len(batch.log_prob)
        step_metrics, log_ratio = np.zeros(NUM_LOSS_METRICS + 1, np.float32), batch.log_prob
        if num_samples == 0:
            self._gradient.zero_()
        else:
            step_metrics[:NUM_LOSS_METRICS], log_ratio = self._differentiate(batch)
        if self._ranks.num_ranks > 1:
            self._ranks.average([self._gradient, torch.from_numpy(step_metrics[:NUM_LOSS_METRICS])], num_samples)
        gradient, limit = self._gradient_array, self.config.max_grad_norm
        norm = math.sqrt(np.dot(gradient, gradient))
        if 0.0 < limit < norm + 1e-6:
            gradient *= limit / (norm + 1e-6)
        self._optimizer.step(learning_rate, self._found_inf[not math.isfinite(float(step_metrics[0]) + norm)])
        step_metrics[NUM_LOSS_METRICS] = norm
        return torch.from_numpy(step_metrics), log_ratio

    def _differentiate(self, batch: Samples) -> tuple[tuple[float, ...], Tensor]:
        """Writes the gradient of a minibatch; returns the scalars of `LossMetrics`, and the log-ratios."""
        config, distribution, num_samples = self.config, self._distribution, len(batch.log_prob)
        # Forward: outputs of the policy [P, B] and normalized values [B].
        floats = batch.floats.numpy()
        features = critic_features = self._actor.forward(floats)
        if self._critic is not None:
            critic_features = self._critic.forward(floats)
        outputs = np.dot(features, self._policy_head.weight.T).T.copy()
        outputs += self._policy_head.bias[:, None]
        values = np.dot(critic_features, self._value_head.weight[0])
        values += self._value_head.bias
        # Losses, each with its gradient.
        mask = None if self._mask is None else floats[:, self._mask]
        log_prob = distribution.log_prob(outputs, batch.action.numpy(), mask)
        old_log_prob, returns = batch.log_prob.numpy(), batch.normalized_return.numpy()
        policy = self._policy_loss(log_prob, old_log_prob, batch.advantage.numpy(), config)
        if config.ppo_clip_value is None:
            error = values - returns
            value = LossOfSamples(float(np.dot(error, error)) / num_samples, error * (2.0 / num_samples))
        else:
            value = clipped_value_loss(values, batch.normalized_value.numpy(), returns, config.ppo_clip_value)
        value_loss = config.value_loss_coeff * value.mean
        entropy_loss = kl = kl_loss = 0.0
        if config.entropy_loss_coeff > 0.0:
            entropy_loss = -config.entropy_loss_coeff * distribution.mean_entropy()
        if self._needs_kl:
            kl = distribution.mean_kl(batch.action_parameters.numpy())
        if config.kl_loss_coeff > 0.0:
            kl_loss = config.kl_loss_coeff * kl
        loss = policy.mean + value_loss + entropy_loss + kl_loss
        # Backward: heads, then encoders.
        outputs_gradient = distribution.backward(policy.gradient, -config.entropy_loss_coeff, config.kl_loss_coeff)
        values_gradient = config.value_loss_coeff * value.gradient
        np.dot(outputs_gradient, features, out=self._policy_head.weight_gradient)
        np.add.reduce(outputs_gradient, axis=1, out=self._policy_head.bias_gradient)
        np.dot(values_gradient, critic_features, out=self._value_head.weight_gradient[0])
        self._value_head.bias_gradient[0] = np.add.reduce(values_gradient)
        features_gradient = np.dot(outputs_gradient.T, self._policy_head.weight)
        critic_gradient = np.dot(values_gradient[:, None], self._value_head.weight)
        if self._critic is None:
            features_gradient += critic_gradient
        else:
            self._critic.backward(critic_gradient)
        self._actor.backward(features_gradient)
        return (loss, policy.mean, value_loss, entropy_loss, kl_loss, kl), torch.from_numpy(log_prob - old_log_prob)
