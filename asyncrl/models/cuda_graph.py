"""A function as one CUDA graph: hundreds of kernels in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import torch

Compile = Literal["auto", "off", "cuda_graph"]
"""How updates and inference batches run; as in the settings."""

LONGEST_REASON = 300
"""Characters of an error in a message; the log has the complete text."""

_WARM_UP_CALLS = 3

Result = TypeVar("Result")


class GraphedFunction(Generic[Result]):
    """Calls a function that has no arguments and reads and writes the same tensors in every call.

    The first calls run without a graph on the capturing stream, as PyTorch requires: they allocate buffers and load
    libraries. Capturing computes nothing, so every call computes exactly once.

    Args:
        function: the function; every call overwrites its result.
        device: where it runs.
        generator: the random generator that it uses, if any.
    """

    def __init__(
        self, function: Callable[[], Result], device: torch.device, generator: torch.Generator | None = None
    ) -> None:
        self._function = function
        self._device = device
        self._generator = generator
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._num_warm_up_calls = 0
        self._captured: tuple[torch.cuda.CUDAGraph, Result] | None = None

    def __call__(self) -> Result:
        """Runs the function on the current stream without waiting for the result."""
        if self._num_warm_up_calls < _WARM_UP_CALLS:
            self._num_warm_up_calls += 1
            return self._warm_up()
        if self._captured is None:
            self._captured = self._capture()
        graph, result = self._captured
        graph.replay()
        return result

    def _warm_up(self) -> Result:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._function()
        current.wait_stream(self._stream)
        return result

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Result]:
        graph = torch.cuda.CUDAGraph()
        if self._generator is not None:
            graph.register_generator_state(self._generator)
        # Other threads may copy during the capture.
        capturing = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        current = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.device(self._device), capturing:
                return graph, self._function()
        except Exception:
            torch.cuda.set_stream(current)  # after an invalid capture, PyTorch leaves the capturing stream current
            raise


def short_reason(error: Exception) -> str:
    """The first paragraph of an error in one line."""
    first_paragraph = str(error).strip().split("\n\n")[0]
    return (" ".join(first_paragraph.split()) or type(error).__name__)[:LONGEST_REASON]
