"""How an update is run: operation by operation, compiled, or as a CUDA graph. All of them compute the same.

A fast way that fails gives way to the plain one for the rest of the run, and the user is told.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from asyncrl.learner.transitions import Transitions

_WARM_UP_UPDATES = 3
_LONGEST_REASON = 300  # characters; the log has all of it

log = logging.getLogger(__name__)


class UpdateFigures(NamedTuple):
    """What an update leaves for the metrics, in an order that its learner knows; `actor` is None if it was not trained.

    Attributes:
        critic: [C].
        actor: [A], if the policy was trained.
    """

    critic: Tensor
    actor: Tensor | None


Update = Callable[[Transitions, Tensor, bool], UpdateFigures]
"""A function of a batch, standard normal noise, and whether the policy is trained; it changes tensors in place.

Everything of it that is no tensor must be the same at each call with the same last argument. What it keeps for the next
call, such as buffers, it makes in the first.
"""

Compile = Literal["auto", "off", "inductor", "cuda_graph"]


class UpdateRunner:
    """Runs updates in the way that `compile` names: auto is a CUDA graph on such a device, and plain elsewhere.

    On a CPU `torch.compile` made SAC's update slower: its passes leave little to fuse.
    """

    def __init__(self, update: Update, compile: Compile, device: torch.device) -> None:
        """Compiles nothing yet.

        Args:
            update: what to run.
            compile: as in the settings.
            device: where the update's tensors are.
        """
        self._plain = update
        self._device = device
        self._way = compile if compile != "auto" else ("cuda_graph" if device.type == "cuda" else "off")
        self._fast: Update | None = None
        self._notice: str | None = None

    def __call__(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        """Makes one update."""
        if self._way == "off":
            return self._plain(batch, noise, trains_actor)
        try:
            if self._fast is None:
                self._fast = _Compiled(self._plain) if self._way == "inductor" else _Graphed(self._plain, self._device)
            return self._fast(batch, noise, trains_actor)
        except Exception as error:
            # Tracing, compiling and capturing come before anything is computed, so the update is still to be made.
            first_paragraph = str(error).strip().split("\n\n")[0]
            reason = " ".join(first_paragraph.split()) or type(error).__name__
            self._notice = f"updates run without --compile={self._way}, which failed: {reason[:_LONGEST_REASON]}"
            log.warning("--compile=%s failed", self._way, exc_info=True)
            self._way, self._fast = "off", None
            return self._plain(batch, noise, trains_actor)

    def take_notice(self) -> str | None:
        """What the user should know of, once."""
        notice, self._notice = self._notice, None
        return notice


class _Compiled:
    """By `torch.compile`, after a first plain update of each kind, which makes the buffers."""

    def __init__(self, update: Update) -> None:
        self._plain = update
        self._compiled: Update = torch.compile(update, fullgraph=True, dynamic=False)
        self._seen: set[bool] = set()

    def __call__(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        if trains_actor not in self._seen:
            self._seen.add(trains_actor)
            return self._plain(batch, noise, trains_actor)
        return self._compiled(batch, noise, trains_actor)


@dataclass(frozen=True)
class _Graph:
    """A captured update, the tensors that it reads, and those that it writes its figures to."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    figures: UpdateFigures

    def replay(self, inputs: list[Tensor]) -> UpdateFigures:
        for own, given in zip(self.inputs, inputs, strict=True):
            if own.shape != given.shape:
                raise ValueError(f"an update was captured with {tuple(own.shape)} and is given {tuple(given.shape)}")
            own.copy_(given)
        self.graph.replay()
        critic, actor = self.figures
        return UpdateFigures(critic.clone(), None if actor is None else actor.clone())


class _Graphed:
    """By CUDA graphs, one for updates with the policy and one for those without: a few hundred kernels in one call.

    The first updates of each kind run plain, on the stream that captures, as PyTorch asks for: they make the buffers
    and load the libraries. Capturing computes nothing, so every update is made once.
    """

    def __init__(self, update: Update, device: torch.device) -> None:
        self._plain = update
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._num_plain: Counter[bool] = Counter()
        self._graphs: dict[bool, _Graph] = {}

    def __call__(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        if self._num_plain[trains_actor] < _WARM_UP_UPDATES:
            self._num_plain[trains_actor] += 1
            return self._warm_up(batch, noise, trains_actor)
        if trains_actor not in self._graphs:
            self._graphs[trains_actor] = self._capture(batch, noise, trains_actor)
        return self._graphs[trains_actor].replay([*_tensors(batch), noise])

    def _warm_up(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> UpdateFigures:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            figures = self._plain(batch, noise, trains_actor)
        current.wait_stream(self._stream)
        return figures

    def _capture(self, batch: Transitions, noise: Tensor, trains_actor: bool) -> _Graph:
        inputs = [tensor.clone() for tensor in (*_tensors(batch), noise)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, stream=self._stream):
            figures = self._plain(Transitions(*inputs[:-1]), inputs[-1], trains_actor)
        return _Graph(graph, inputs, figures)


def _tensors(batch: Transitions) -> list[Tensor]:
    return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
