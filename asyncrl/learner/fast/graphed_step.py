"""Optimizer steps of an on-policy learner as CUDA graphs: minibatches of any size in tensors of fixed shapes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.algorithms.losses import Samples
from asyncrl.learner.update_runner import StepMetrics, UpdateRunner

_MOST_PADDING = 8
"""With more pieces for each sequence the step is made without a graph, on packed sequences: padding would cost more."""


class _Size(NamedTuple):
    """Of a minibatch: its samples, and the room for pieces of sequences in its graph, 0 without sequences."""

    num_samples: int
    num_pieces: int


class _Shape(NamedTuple):
    """What a graph is captured for: samples or sequences with those that fill it up, and the room for pieces."""

    num_rows: int
    num_pieces: int


class GraphedStep:
    """Takes an optimizer step by replaying a graph: minibatches are filled up, and the learning rate is a tensor.

    If a dataset has larger minibatches than those before it, as of a policy that has played more agents, its graphs
    have the next power of two of rows, so that few are captured.

    Sequences of a recurrent policy are cut into pieces where episodes begin. The room for pieces is the number of
    sequences times a power of two, with a graph for each, so that few graphs are captured and few rows are padding.

    Attributes:
        runner: captures and replays; it says whether graphs failed.
    """

    def __init__(
        self, take_step: Callable[[Samples, Tensor, int], tuple[Tensor, Tensor]], device: torch.device, num_ranks: int
    ) -> None:
        """Captures nothing yet.

        Args:
            take_step: from a minibatch, the learning rate and the room for pieces to metrics and log-ratios, which are
                those of the samples first.
            device: where minibatches are.
            num_ranks: learners that train together.
        """
        self._take_step = take_step
        self._rate = torch.zeros((), device=device)
        self._fields: tuple[str, ...] = ()
        self._largest = 0
        self._sizes: deque[_Size] = deque()
        self.runner = UpdateRunner(self._update, device, num_ranks)

    def start_pass(self, minibatches: Sequence[Samples], largest: int) -> None:
        """Takes the sizes of the minibatches of a pass, for each of which a call follows.

        For sequences the host reads the numbers of valid rows and of pieces, once for all minibatches.

        Args:
            minibatches: in the order of the calls.
            largest: the most samples, or sequences, that a minibatch of the dataset has.
        """
        if largest > self._largest:
            self._largest = largest if self._largest == 0 else 1 << (largest - 1).bit_length()
        self._sizes = deque(_Size(len(batch.log_prob), 0) for batch in minibatches)
        counts = [
            torch.stack((batch.valid.sum(), batch.begins[:, 1:].sum()))
            for batch in minibatches
            if batch.valid is not None and batch.begins is not None
        ]
        if counts:
            sizes = torch.stack(counts).tolist()
            self._sizes = deque(_Size(num_valid, self._room(self._largest + begun)) for num_valid, begun in sizes)

    def __call__(self, batch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Takes a step on the next minibatch of the pass; returns metrics and the log-ratios of its samples."""
        num_samples, num_pieces = self._sizes.popleft()
        self._rate.fill_(learning_rate)
        if num_pieces > _MOST_PADDING * self._largest:
            return self._take_step(batch, self._rate, 0)
        if self.runner.makes_graphs:
            batch = batch.filled_up(self._largest)
        else:
            num_pieces = 0
        self._fields, fields = zip(*batch.non_null_fields().items(), strict=True)
        step_metrics, log_ratio = self.runner([*fields, self._rate], _Shape(self._largest, num_pieces))
        assert step_metrics is not None and log_ratio is not None
        return step_metrics, log_ratio[:num_samples]

    def _update(self, inputs: Sequence[Tensor], shape: _Shape) -> StepMetrics:
        """The update that a graph captures: a function of the minibatch's fields and the learning rate."""
        present = dict(zip(self._fields, inputs, strict=False))
        return self._take_step(Samples(**present), inputs[-1], shape.num_pieces)

    def _room(self, num_pieces: int) -> int:
        room = self._largest
        while room < num_pieces:
            room *= 2
        return room
