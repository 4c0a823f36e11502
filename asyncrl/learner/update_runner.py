"""How an update is run: operation by operation, or as a CUDA graph. Both compute the same.

A graph that fails gives way to plain updates for the rest of the run, and the user is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.models.cuda_graph import Compile, GraphedFunction, short_reason

log = logging.getLogger(__name__)

Figures = tuple[Tensor | None, ...]
"""What an update leaves for the metrics, in an order that its learner knows; None for parts that were not trained."""

Update = Callable[[Sequence[Tensor], bool], Figures]
"""A function of the tensors that it learns from, and whether the policy is trained; it changes tensors in place.

Everything of it that is no tensor must be the same at each call with the same last argument. What it keeps for the next
call, such as buffers, it makes in the first.
"""


def makes_graphs(compile: Compile, device: torch.device) -> bool:
    """Whether updates run as CUDA graphs: with auto on a CUDA device."""
    return compile == "cuda_graph" or (compile == "auto" and device.type == "cuda")


class UpdateRunner:
    """Runs updates in the way that `compile` names."""

    def __init__(self, update: Update, compile: Compile, device: torch.device) -> None:
        """Captures nothing yet.

        Args:
            update: what to run.
            compile: as in the settings.
            device: where the update's tensors are.
        """
        self._plain = update
        self._device = device
        self._way: Compile = "cuda_graph" if makes_graphs(compile, device) else "off"
        self._graphs: _Graphed | None = None
        self._notice: str | None = None

    @property
    def makes_graphs(self) -> bool:
        """Whether all updates with the same last argument must have tensors of the same shapes."""
        return self._way == "cuda_graph"

    def __call__(self, inputs: Sequence[Tensor], trains_actor: bool = True) -> Figures:
        """Makes one update."""
        if self._way == "off":
            return self._plain(inputs, trains_actor)
        try:
            if self._graphs is None:
                self._graphs = _Graphed(self._plain, self._device)
            return self._graphs(inputs, trains_actor)
        except Exception as error:
            # Capturing comes before anything is computed, so the update is still to be made.
            self._notice = f"Updates run without --compile={self._way}, which failed: {short_reason(error)}"
            log.warning("--compile=%s failed", self._way, exc_info=True)
            self._way, self._graphs = "off", None
            return self._plain(inputs, trains_actor)

    def take_notice(self) -> str | None:
        """What the user should know of, once."""
        notice, self._notice = self._notice, None
        return notice


class _Graphed:
    """By CUDA graphs, one for updates with the policy and one for those without."""

    def __init__(self, update: Update, device: torch.device) -> None:
        self._update = update
        self._device = device
        self._graphs: dict[bool, tuple[list[Tensor], GraphedFunction[Figures]]] = {}

    def __call__(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        if trains_actor not in self._graphs:
            own = [tensor.clone() for tensor in inputs]
            graph = GraphedFunction(lambda: self._update(own, trains_actor), self._device)
            self._graphs[trains_actor] = own, graph
        held, function = self._graphs[trains_actor]
        for tensor, given in zip(held, inputs, strict=True):
            if tensor.shape != given.shape:
                raise ValueError(f"an update was captured with {tuple(tensor.shape)} and is given {tuple(given.shape)}")
            tensor.copy_(given)
        return tuple(None if figure is None else figure.clone() for figure in function())
