"""Runs updates as CUDA graphs, which compute the same as operation by operation.

If a graph fails, the rest of the run uses plain updates, and the user gets a message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.models.cuda_graph import Compile, GraphedFunction, short_reason

log = logging.getLogger(__name__)

Figures = tuple[Tensor | None, ...]
"""Results of an update for the metrics, in the order of its learner; None for parts that were not trained."""

Update = Callable[[Sequence[Tensor], bool], Figures]
"""A function of the tensors of a batch, and whether the policy is trained; it changes weights in place.

All other values that it reads must be the same in each call with the same last argument. Buffers that it keeps are
allocated in the first call.
"""

Graphs = dict[bool, tuple[list[Tensor], GraphedFunction[Figures]]]
"""For updates that train the policy and for others: the tensors that the graph reads, and the graph."""


def makes_graphs(compile: Compile, device: torch.device) -> bool:
    """Whether updates run as CUDA graphs: with auto on a CUDA device."""
    return compile == "cuda_graph" or (compile == "auto" and device.type == "cuda")


class UpdateRunner:
    """Runs updates as two CUDA graphs: one of those that train the policy, one of those that do not."""

    def __init__(self, update: Update, device: torch.device) -> None:
        """Captures nothing yet; the update's tensors are on `device`."""
        self._update = update
        self._device = device
        self._graphs: Graphs | None = {}  # None after a failure
        self._notice: str | None = None

    @property
    def makes_graphs(self) -> bool:
        """Whether all updates with the same last argument must have tensors of the same shapes."""
        return self._graphs is not None

    def __call__(self, inputs: Sequence[Tensor], trains_actor: bool = True) -> Figures:
        if self._graphs is None:
            return self._update(inputs, trains_actor)
        try:
            return self._replay(self._graphs, inputs, trains_actor)
        except Exception as error:
            # Capturing fails before anything is computed, so the update is made now.
            self._notice = f"Updates run without --compile=cuda_graph, which failed: {short_reason(error)}"
            log.warning("--compile=cuda_graph failed", exc_info=True)
            self._graphs = None
            return self._update(inputs, trains_actor)

    def take_notice(self) -> str | None:
        """A message for the user, returned once."""
        notice, self._notice = self._notice, None
        return notice

    def _replay(self, graphs: Graphs, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        if trains_actor not in graphs:
            own = [tensor.clone() for tensor in inputs]
            graphs[trains_actor] = own, GraphedFunction(lambda: self._update(own, trains_actor), self._device)
        held, function = graphs[trains_actor]
        for tensor, given in zip(held, inputs, strict=True):
            if tensor.shape != given.shape:
                raise ValueError(f"an update was captured with {tuple(tensor.shape)} and is given {tuple(given.shape)}")
            tensor.copy_(given)
        return tuple(None if figure is None else figure.clone() for figure in function())
