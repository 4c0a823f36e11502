"""What autograd needs: the outputs of an actor-critic, for a minibatch or a whole dataset, and the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algorithms.losses import NUM_LOSS_METRICS, Samples
from asyncrl.config.algorithms import imported
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import FlatAdam, clip_gradient
from asyncrl.learner.ranks import Ranks
from asyncrl.models.actor_critic import ActorCritic, ForwardResult
from asyncrl.models.encoders import Inputs

_IMAGES_AT_ONCE = 256  # in a pass without gradients


class ModelOutputs:
    """Runs a model on rows or on sequences of rows.

    Attributes:
        model: the model.
        recurrence: length of the sequences that a recurrent policy is trained on, 0 without a recurrent core.
        evaluate: computes the outputs for normalized observations `[B, F]` faster than the model; None without it.
    """

    def __init__(self, model: ActorCritic, config: TrainConfig) -> None:
        self.model = model
        self._is_reduced = config.precision == "bf16"
        self.evaluate: Callable[[Tensor], ForwardResult] | None = None
        self.recurrence = 0
        if model.rnn_state_size > 0:
            self.recurrence = config.rollout if config.recurrence == "auto" else config.recurrence

    def samples(self, batch: Samples, num_pieces: int = 0) -> tuple[ForwardResult, Samples]:
        """The outputs for a minibatch, and the minibatch row by row, sequences transposed to steps first."""
        rows, begins = batch, batch.begins
        if begins is not None:
            fields = batch._replace(rnn_state=None, begins=None).non_null_fields()
            rows = batch._replace(**{name: field.transpose(0, 1).flatten(0, 1) for name, field in fields.items()})
            begins = begins.t()
        return self.rows(rows.inputs, batch.rnn_state, begins, num_pieces), rows

    @torch.no_grad()
    def dataset(
        self, inputs: Inputs, rnn_state: Tensor | None, begins: Tensor | None, in_float32: bool = False
    ) -> ForwardResult:
        """The outputs for all rows of a dataset, without gradients: images, which fill much memory, part by part."""
        if self.evaluate is not None:
            return self.evaluate(inputs.floats)
        if inputs.pixels is None or self.recurrence:
            return self.rows(inputs, rnn_state, begins, in_float32=in_float32)
        parts = zip(
            torch.split(inputs.floats, _IMAGES_AT_ONCE), torch.split(inputs.pixels, _IMAGES_AT_ONCE), strict=True
        )
        results = [self.rows(Inputs(*part), None, None, in_float32=in_float32) for part in parts]
        return ForwardResult(*(torch.cat(fields) for fields in zip(*results, strict=True)))

    def rows(
        self,
        inputs: Inputs,
        rnn_state: Tensor | None,
        begins: Tensor | None,
        num_pieces: int = 0,
        in_float32: bool = False,
    ) -> ForwardResult:
        """The outputs for rows of observations, as float32, computed in the precision of the run.

        Args:
            inputs: normalized observations.
            rnn_state: [B, S], the states with which a recurrent model begins.
            begins: [T, B] bool, rows that begin an episode.
            num_pieces: see `ActorCritic.unroll`.
            in_float32: compute in float32 whatever the precision of the run.
        """
        if in_float32 or not self._is_reduced:
            return self._forward(inputs, rnn_state, begins, num_pieces)
        with torch.autocast(inputs.floats.device.type, torch.bfloat16, cache_enabled=False):
            parameters, values = self._forward(inputs, rnn_state, begins, num_pieces)
        return ForwardResult(parameters.float(), values.float())

    def _forward(
        self, inputs: Inputs, rnn_state: Tensor | None, begins: Tensor | None, num_pieces: int
    ) -> ForwardResult:
        if not self.recurrence:
            return self.model.forward(*inputs)
        assert rnn_state is not None and begins is not None
        room = (num_pieces,) if num_pieces > 0 else ()  # a user's `unroll` does not take it
        return self.model.unroll(inputs, rnn_state, begins, *room)


class AutogradStep:
    """Takes one optimizer step for each minibatch; skips it if the loss or the gradient is not finite.

    Attributes:
        config: the settings of the loss; a schedule replaces them before each dataset.
    """

    def __init__(
        self, outputs: ModelOutputs, gradient: Tensor, optimizer: FlatAdam, ranks: Ranks, config: TrainConfig
    ) -> None:
        """Prepares for a model whose gradients are views of `gradient: [N]`, which the optimizer reads."""
        self._outputs, self._gradient, self._optimizer, self._ranks = outputs, gradient, optimizer, ranks
        self._loss = imported(config.algorithm.loss)
        self._rate = torch.zeros((), device=gradient.device)
        self.config = config

    def __call__(self, batch: Samples, learning_rate: float | Tensor, num_pieces: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the `STEP_METRICS` [7] of the step, and log-ratios.

        With `num_pieces`, see `ActorCritic.unroll`, shapes do not depend on which rows of sequences are valid.
        """
        (parameters, values), rows = self._outputs.samples(batch, num_pieces)
        if (is_sample := rows.valid) is not None:
            if num_pieces > 0:
                rows, valid_rows = rows.valid_filled_up()
            else:
                valid_rows = is_sample.nonzero().squeeze(-1)
                rows = rows._replace(rnn_state=None, begins=None, valid=None).at(valid_rows)
            parameters, values = parameters.index_select(0, valid_rows), values.index_select(0, valid_rows)
        self._gradient.zero_()  # in place: dropping gradients would take them out of the flat tensor
        num_samples = rows.log_prob.shape[0]
        if num_samples == 0:
            # No row of these sequences is a sample. A single rank takes no step; of several, others may have samples.
            unknown = 0.0 if self._ranks.num_ranks > 1 else math.nan
            step_metrics, log_ratio = parameters.new_full((NUM_LOSS_METRICS,), unknown), rows.log_prob
        else:
            distribution = self._outputs.model.distribution
            *metrics, log_ratio = self._loss(parameters, values, rows, distribution, self.config)
            metrics[0].backward()
            step_metrics = torch.stack(metrics).detach()
        if self._ranks.num_ranks > 1:
            weight = num_samples if rows.share is None else (rows.share > 0.0).sum()
            self._ranks.average([self._gradient, step_metrics], weight)
        grad_norm = clip_gradient(self._gradient, self.config.max_grad_norm)
        found_inf = torch.isfinite(step_metrics[0] + grad_norm).logical_not().float()
        self._optimizer.step(self._rate.fill_(learning_rate), found_inf)
        return torch.cat((step_metrics, grad_norm.view(1))), log_ratio.detach()
