"""A function as one CUDA graph: hundreds of kernels in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import torch

Compile = Literal["auto", "off", "cuda_graph"]
"""How updates, and batches of inference, are run; as in the settings."""

LONGEST_REASON = 300
"""Characters of an error that a user is told; the log has all of it."""

_WARM_UP_CALLS = 3

Result = TypeVar("Result")


class GraphedFunction(Generic[Result]):
    """Calls a function that has no arguments and reads and writes the same tensors each time.

    The first calls run plain, on the stream that captures, as PyTorch asks for: they make the buffers and load the
    libraries. Capturing computes nothing, so every call is made once.
    """

    def __init__(
        self, function: Callable[[], Result], device: torch.device, generator: torch.Generator | None = None
    ) -> None:
        """Captures nothing yet.

        Args:
            function: what to call; what it returns is written anew by each call.
            device: where it runs.
            generator: of random numbers, if it draws from one.
        """
        self._function = function
        self._device = device
        self._generator = generator
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._num_plain = 0
        self._captured: tuple[torch.cuda.CUDAGraph, Result] | None = None

    def __call__(self) -> Result:
        """Runs it on the current stream; does not wait for it."""
        if self._num_plain < _WARM_UP_CALLS:
            self._num_plain += 1
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
        # Other threads may copy meanwhile.
        capturing = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        current = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.device(self._device), capturing:
                return graph, self._function()
        except Exception:
            torch.cuda.set_stream(current)  # PyTorch leaves the capturing stream in force if the capture was invalid
            raise


def short_reason(error: Exception) -> str:
    """The first paragraph of an error in one line."""
    first_paragraph = str(error).strip().split("\n\n")[0]
    return (" ".join(first_paragraph.split()) or type(error).__name__)[:LONGEST_REASON]
