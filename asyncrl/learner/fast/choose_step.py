"""Chooses how a learner takes its steps. All ways compute the same, so the learners know none of them."""

from __future__ import annotations

import torch

from asyncrl import native
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.autograd_step import AutogradStep, ModelOutputs
from asyncrl.learner.fast.array_update import ArrayUpdate
from asyncrl.learner.fast.graphed_step import GraphedStep
from asyncrl.learner.fast.native_update import NativeUpdate
from asyncrl.learner.optimizer import FlatAdam, ParameterStore, scheduled
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.update_runner import Update, UpdateRunner, makes_graphs
from asyncrl.models.flat import FlatParameters

OptimizerStep = AutogradStep | ArrayUpdate | NativeUpdate | GraphedStep
"""Called with a minibatch and the learning rate, takes a step and returns its `FIGURES` [7] and log-ratios [B]."""


def choose_step(
    outputs: ModelOutputs,
    flat: FlatParameters,
    optimizer: FlatAdam,
    ranks: Ranks,
    is_capturable: bool,
    config: TrainConfig,
) -> OptimizerStep:
    """The fastest way to take the steps of this learner with these settings; all compute the same.

    Args:
        outputs: runs the model.
        flat: its parameters and gradients.
        optimizer: steps them.
        ranks: the learners that train together.
        is_capturable: whether graphs can contain the optimizer's memory.
        config: the settings; captured graphs contain their present values.
    """
    model, device = outputs.model, flat.data.device
    autograd = AutogradStep(outputs, flat.require_grad(), optimizer, ranks, config)
    can_capture = is_capturable and config.algorithm.fits_cuda_graph
    can_capture &= outputs.recurrence == 0 or model.unrolls_padded
    can_capture &= scheduled(config, 0) is config  # a graph contains the settings of the loss
    if can_capture and makes_graphs(config.compile, device, ranks.num_ranks):
        return GraphedStep(autograd, device, ranks.num_ranks)
    if ArrayUpdate.fits(model, config, device):
        kernels = native.kernels()
        if kernels is not None:
            return NativeUpdate(kernels, model, flat, optimizer, ranks, config)
        return ArrayUpdate(model, flat, optimizer, ranks, config)
    return autograd


def choose_update(
    update: Update[bool],
    passes: Update[bool] | None,
    config: TrainConfig,
    device: torch.device,
    storage: ParameterStore,
) -> Update[bool] | UpdateRunner[bool]:
    """A function that makes one update from the tensors of a batch, and from whether it trains the policy.

    Args:
        update: the readable one, by autograd.
        passes: the same by hand-written passes; None if they do not know the networks.
        config: `compile` says whether CUDA graphs are captured.
        device: of the tensors.
        storage: some memory cannot be used by a CUDA graph; its ranks train together.
    """
    step = passes or update
    num_ranks = storage.ranks.num_ranks
    if storage.is_capturable and makes_graphs(config.compile, device, num_ranks):
        return UpdateRunner(step, device, num_ranks)
    return step
