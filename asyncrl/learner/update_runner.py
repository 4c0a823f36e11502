"""Runs updates as CUDA graphs, which compute the same as operation by operation.

If a graph fails, the rest of the run uses plain updates, and the user gets a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.models.cuda_graph import Compile, GraphedFunction, short_reason
from asyncrl.processes.children import RunFailed

log = logging.getLogger(__name__)

StepMetrics = tuple[Tensor | None, ...]
"""Results of an update for the metrics, in the order of its learner; None for parts that were not trained."""

Kind = TypeVar("Kind", bound=Hashable)
"""What two updates of the same shapes and operations have in common."""

Update = Callable[[Sequence[Tensor], Kind], StepMetrics]
"""A function of the tensors of a batch and its kind, for example whether it trains the policy; it changes weights in
place.

All other values that it reads must be the same in each call of one kind. Buffers that it keeps are allocated in the
first call.
"""

Graphs = dict[Kind, tuple[list[Tensor], GraphedFunction[StepMetrics]]]
"""For updates of each kind the tensors that the graph reads, and the graph."""


def in_graphs(before: TrainConfig, now: TrainConfig) -> bool:
    """Whether a hyperparameter has changed whose value a captured graph contains; the learning rate is a tensor."""
    return before != now.model_copy(update={"learning_rate": before.learning_rate})


def makes_graphs(compile: Compile, device: torch.device, num_ranks: int = 1) -> bool:
    """Whether updates run as CUDA graphs: with auto on a CUDA device, if the learner trains alone."""
    return compile == "cuda_graph" or (compile == "auto" and device.type == "cuda" and num_ranks == 1)


class UpdateRunner(Generic[Kind]):
    """Runs updates as CUDA graphs, one for each kind of update."""

    def __init__(self, update: Update[Kind], device: torch.device, num_ranks: int = 1) -> None:
        """Captures nothing yet; the update's tensors are on `device`. With several ranks a failure stops all."""
        self._update = update
        self._has_ranks = num_ranks > 1
        self._device = device
        self._graphs: Graphs[Kind] | None = {}  # None after a failure
        self._notice: str | None = None

    @property
    def makes_graphs(self) -> bool:
        """Whether all updates of one kind must have tensors of the same shapes."""
        return self._graphs is not None

    def __call__(self, inputs: Sequence[Tensor], kind: Kind) -> StepMetrics:
        if self._graphs is None:
            return self._update(inputs, kind)
        try:
            return self._replay(self._graphs, inputs, kind)
        except RunFailed:
            raise
        except Exception as error:
            if self._has_ranks:  # an update that is made again would exchange gradients again
                raise
            # Capturing fails before anything is computed, so the update is made now.
            self._notice = f"Updates run without --compile=cuda_graph, which failed: {short_reason(error)}"
            log.warning("--compile=cuda_graph failed", exc_info=True)
            self._graphs = None
            return self._update(inputs, kind)

    def close(self) -> None:
        """Frees the captured graphs and their memory, which Python's collector would do late."""
        self._graphs = None

    def pop_message(self) -> str | None:
        """A message for the user, returned once."""
        notice, self._notice = self._notice, None
        return notice

    def _replay(self, graphs: Graphs[Kind], inputs: Sequence[Tensor], kind: Kind) -> StepMetrics:
        if kind not in graphs:
            own = [tensor.clone() for tensor in inputs]
            graphs[kind] = own, GraphedFunction(lambda: self._update(own, kind), self._device)
        held, function = graphs[kind]
        for tensor, given in zip(held, inputs, strict=True):
            if tensor.shape != given.shape:
                raise ValueError(f"an update was captured with {tuple(tensor.shape)} and is given {tuple(given.shape)}")
            tensor.copy_(given)
        return tuple(None if metric is None else metric.clone() for metric in function())
