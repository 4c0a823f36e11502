"""Optimizer steps of PPO and A2C in NumPy, for networks that fit: what `OnPolicyLoss` and autograd compute.

Networks of 64-64 and minibatches of a few hundred samples are little arithmetic. Most of the time of a step by autograd
goes to calls, nodes and fresh memory; here the passes are written out, over the same parameters and gradients.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithms.array_losses import (
    FloatArray,
    LossOfSamples,
    a2c_policy_loss,
    clipped_value_loss,
    ppo_policy_loss,
    squared_value_loss,
)
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.adam import FlatAdam
from asyncrl.learner.on_policy_loss import NUM_FIGURES, OnPolicyLoss
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.samples import Samples
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.array_distributions import has_array_distribution, make_array_distribution
from asyncrl.models.array_networks import ArrayActorCritic
from asyncrl.models.flat import FlatParameters


class ArrayUpdate:
    """Takes one optimizer step for each minibatch."""

    @staticmethod
    def fits(model: ActorCritic, config: TrainConfig, device: torch.device) -> bool:
        """Whether it computes the updates of such a run.

        A learner that was given several threads has much arithmetic in a minibatch; autograd uses them, NumPy does not.
        """
        is_plain = device.type == "cpu" and config.precision != "bf16"
        has_one_thread = torch.get_num_threads() == 1
        return is_plain and has_one_thread and model.runs_in_arrays and has_array_distribution(model)

    def __init__(
        self,
        model: ActorCritic,
        flat: FlatParameters,
        loss: OnPolicyLoss,
        optimizer: FlatAdam,
        ranks: Ranks,
        config: TrainConfig,
    ) -> None:
        """Prepares for a model that fits.

        Args:
            model: its parameters are `flat`.
            flat: parameters and gradients.
            loss: what is minimized.
            optimizer: steps the parameters, or what they are copies of, along the gradients.
            ranks: the learners that train together.
            config: the run's settings.
        """
        self._flat, self._gradient = flat, flat.require_grad()
        self._gradient_array: FloatArray = self._gradient.numpy()
        self._networks, self._distribution = ArrayActorCritic(model), make_array_distribution(model)
        layout = model.layout
        self._mask = slice(layout.num_features, layout.num_floats) if layout.num_mask else None
        self._loss = loss
        self._optimizer = optimizer
        self._ranks = ranks
        self._config = config
        self._found_inf = {False: torch.zeros(()), True: torch.ones(())}

    @np.errstate(all="ignore")
    def __call__(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Takes one step, or leaves it out if the loss or the gradient is not finite.

        Args:
            batch: N samples.
            learning_rate: size of the step.

        Returns:
            `[7]`: what `OnPolicyLoss.figures` says, and the norm of the gradient before clipping; and log-ratios `[N]`.
        """
        num_samples = len(batch.log_prob)
        figures = np.zeros(NUM_FIGURES + 1, np.float32)
        means, log_ratio = torch.from_numpy(figures[:NUM_FIGURES]), batch.log_prob
        if num_samples == 0:
            self._flat.zero_grad()
        else:
            figures[:NUM_FIGURES], log_ratios = self._differentiate(batch)
            log_ratio = torch.from_numpy(log_ratios)
        self._ranks.average([self._gradient, means], num_samples)
        figures[NUM_FIGURES] = self._step(float(figures[0]), learning_rate)
        return torch.from_numpy(figures), log_ratio

    def _differentiate(self, batch: Samples) -> tuple[tuple[float, ...], FloatArray]:
        """Writes the gradient of a minibatch; returns the means of `OnPolicyLoss.figures`, and the log-ratios."""
        config, distribution = self._config, self._distribution
        floats = batch.floats.numpy()
        outputs, values = self._networks.forward(floats)
        mask = None if self._mask is None else floats[:, self._mask]
        log_prob = distribution.log_prob(outputs, batch.action.numpy(), mask)
        log_ratio = log_prob - batch.log_prob.numpy()
        policy, value = self._policy_loss(log_prob, log_ratio, batch), self._value_loss(values, batch)
        value_loss = config.value_loss_coeff * value.mean
        entropy_loss = kl = kl_loss = 0.0
        if config.entropy_loss_coeff > 0.0:
            entropy_loss = -config.entropy_loss_coeff * distribution.mean_entropy()
        if self._loss.needs_kl:
            kl = distribution.mean_kl(batch.action_parameters.numpy())
        if config.kl_loss_coeff > 0.0:
            kl_loss = config.kl_loss_coeff * kl
        outputs_gradient = distribution.backward(policy.gradient, -config.entropy_loss_coeff, config.kl_loss_coeff)
        self._networks.backward(outputs_gradient, config.value_loss_coeff * value.gradient)
        loss = policy.mean + value_loss + entropy_loss + kl_loss
        return (loss, policy.mean, value_loss, entropy_loss, kl_loss, kl), log_ratio

    def _policy_loss(self, log_prob: FloatArray, log_ratio: FloatArray, batch: Samples) -> LossOfSamples:
        advantage = batch.advantage.numpy()
        if self._config.algo == "ppo":
            return ppo_policy_loss(log_ratio, advantage, self._loss.clip)
        return a2c_policy_loss(log_prob, advantage)

    def _value_loss(self, values: FloatArray, batch: Samples) -> LossOfSamples:
        clip, returns = self._config.ppo_clip_value, batch.normalized_return.numpy()
        if clip is None:
            return squared_value_loss(values, returns)
        return clipped_value_loss(values, batch.normalized_value.numpy(), returns, clip)

    def _step(self, loss: float, learning_rate: float) -> float:
        """Steps along the gradient that is there, unless it or `loss` is not finite; its norm before clipping."""
        norm, limit = math.sqrt(np.dot(self._gradient_array, self._gradient_array)), self._config.max_grad_norm
        if 0.0 < limit < norm + 1e-6:
            self._gradient_array *= limit / (norm + 1e-6)
        self._optimizer.step(learning_rate, self._found_inf[not math.isfinite(loss + norm)])
        return norm
