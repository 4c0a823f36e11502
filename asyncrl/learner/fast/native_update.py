"""Optimizer steps in C (`asyncrl.native`): the same as in NumPy, and faster for small networks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl import native
from asyncrl.algorithms.losses import NUM_LOSS_METRICS, Samples, needs_kl
from asyncrl.algorithms.ppo import clip_range
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam, clip_gradient
from asyncrl.learner.ranks import Ranks
from asyncrl.models.actor_critic import ActorCritic, ForwardResult
from asyncrl.models.flat import FlatParameters
from asyncrl.models.native_model import NativeModel

_POLICY_LOSSES: dict[object, str] = {
    f"asyncrl.learner.fast.array_update:{name}_policy_loss": name for name in native.ALGORITHMS
}
"""Names of the losses in C, by `Algorithm.array_policy_loss`."""


class NativeUpdate:
    """Takes one optimizer step for each minibatch.

    Attributes:
        config: the settings of the loss; set it before each dataset.
    """

    @staticmethod
    def kernels_for(config: TrainConfig) -> native.Kernels | None:
        """The functions that compute such updates; None if the native core was not built or does not know the loss."""
        return native.kernels() if config.algorithm.array_policy_loss in _POLICY_LOSSES else None

    def __init__(
        self,
        kernels: native.Kernels,
        model: ActorCritic,
        flat: FlatParameters,
        optimizer: FlatAdam,
        ranks: Ranks,
        config: TrainConfig,
    ) -> None:
        """Prepares for a model that `ArrayUpdate.fits` and `NativeModel.fits`, and whose parameters are `flat`."""
        self._kernels, self._optimizer, self._ranks = kernels, optimizer, ranks
        self._gradient, self._num_parameters = flat.grad, model.distribution.num_parameters
        self._described = NativeModel(model)
        self._model = self._described.record
        self._adam = self._describe_optimizer(config) if type(optimizer) is FlatAdam else None
        self._scratch, self._most_samples = torch.empty(0), 0
        self._described_batches: dict[int, tuple[Samples, native.Batch]] = {}
        self._set_config(config)

    @property
    def config(self) -> TrainConfig:
        return self._config

    @config.setter
    def config(self, config: TrainConfig) -> None:
        self._described_batches.clear()
        if config is not self._config:
            self._set_config(config)

    def _set_config(self, config: TrainConfig) -> None:
        self._config = config
        clip, value_clip = clip_range(config.ppo_clip_ratio, config.ppo_clip_mode), config.ppo_clip_value
        self._loss = native.Loss(
            algorithm=native.ALGORITHMS.index(_POLICY_LOSSES[config.algorithm.array_policy_loss]),
            needs_kl=needs_kl(config),
            clips_value=value_clip is not None,
            clip_low=clip.low,
            clip_high=clip.high,
            value_clip=value_clip or 0.0,
            value_coeff=config.value_loss_coeff,
            entropy_coeff=config.entropy_loss_coeff,
            kl_coeff=config.kl_loss_coeff,
        )

    def __call__(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Takes one step, or leaves it out if the loss or the gradient is not finite; see `ArrayUpdate`."""
        num_samples = batch.log_prob.numel()
        metrics, log_ratio = torch.zeros(NUM_LOSS_METRICS + 1), torch.empty(num_samples)
        limit, one_rank = self._config.max_grad_norm, self._ranks.num_ranks == 1
        if num_samples == 0:
            self._gradient.zero_()
        else:
            described = self._described_batch(batch, num_samples)
            memory = self._scratch.data_ptr(), metrics.data_ptr(), log_ratio.data_ptr()
            if one_rank and self._adam is not None:
                self._kernels.step(self._model, self._loss, described, self._adam, learning_rate, limit, *memory)
                return metrics, log_ratio
            self._kernels.gradient(self._model, self._loss, described, *memory)
        if not one_rank:
            self._ranks.average([self._gradient, metrics[:NUM_LOSS_METRICS]], num_samples)
        metrics[NUM_LOSS_METRICS] = self._apply(learning_rate, limit, float(metrics[0]))
        return metrics, log_ratio

    def evaluate(self, floats: Tensor) -> ForwardResult:
        """What `ActorCritic.forward` returns for normalized observations `[B, F] float32`, without gradients."""
        floats, num_rows = floats.contiguous(), len(floats)
        scratch = torch.empty(self._kernels.scratch_size(self._model, native.EVALUATED_AT_ONCE))
        parameters, value = torch.empty(num_rows, self._num_parameters), torch.empty(num_rows)
        batch = native.Batch(num_samples=num_rows, floats_stride=floats.shape[1], floats=floats.data_ptr())
        self._kernels.evaluate(self._model, batch, scratch.data_ptr(), parameters.data_ptr(), value.data_ptr())
        return ForwardResult(parameters, value)

    def _apply(self, learning_rate: float, limit: float, loss: float) -> float:
        """Steps with the gradient, unless it or the loss is not finite; returns the gradient's norm before clipping."""
        if self._adam is not None:
            return float(self._kernels.apply(self._adam, learning_rate, limit, loss))
        norm = float(clip_gradient(self._gradient, limit))
        self._optimizer.step(learning_rate, torch.tensor(float(not math.isfinite(loss + norm))))
        return norm

    def _described_batch(self, batch: Samples, num_samples: int) -> native.Batch:
        """The record of a minibatch, made once for all passes over a dataset."""
        known = self._described_batches.get(id(batch))
        if known is not None:
            return known[1]
        if num_samples > self._most_samples:
            self._most_samples = num_samples
            self._scratch = torch.empty(self._kernels.scratch_size(self._model, num_samples))
        described = self._describe_batch(batch, num_samples)
        self._described_batches[id(batch)] = batch, described  # a minibatch that is held keeps its id
        return described

    @staticmethod
    def _describe_batch(batch: Samples, num_samples: int) -> native.Batch:
        return native.Batch(
            num_samples,
            batch.floats.stride(0),
            batch.action_parameters.stride(0),
            batch.action.stride(0),
            batch.floats.data_ptr(),
            batch.action.data_ptr(),
            batch.action_parameters.data_ptr(),
            batch.log_prob.data_ptr(),
            batch.advantage.data_ptr(),
            batch.normalized_return.data_ptr(),
            batch.normalized_value.data_ptr(),
        )

    def _describe_optimizer(self, config: TrainConfig) -> native.Adam:
        optimizer = self._optimizer
        moments = optimizer.exp_avgs[0], optimizer.exp_avg_sqs[0], optimizer.steps[0]
        self._held = optimizer.parameters[0], self._gradient, *moments  # so that the addresses stay valid
        return native.Adam(
            *(tensor.data_ptr() for tensor in self._held),
            self._gradient.numel(),
            config.adam_beta1,
            config.adam_beta2,
            config.adam_eps,
        )
