"""Acting on an accelerator: few sizes of batches, one transfer each way, and a CUDA graph for each size.

Batches are filled up to the next size that is a power of two of splits, so that few graphs are made; what the rows
beyond say is thrown away. Observations are gathered in page-locked memory; the answers come back as one block of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.answers import ActionAnswer
from asyncrl.buffers.pinning import host_buffer
from asyncrl.models.array_policy import ArrayActResult, ArraySacActResult
from asyncrl.models.cuda_graph import Compile, GraphedFunction, short_reason
from asyncrl.models.factory import ActingModel
from asyncrl.models.sac import SacActor
from asyncrl.runtime.seeding import Stream, derive_seed

log = logging.getLogger(__name__)

Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Observations `[E, row_size]` of a split, and the recurrent states `[E, S]` before them."""


def answer_of(model: ActingModel, arrays: Sequence[npt.NDArray[Any]]) -> ActionAnswer:
    """The arrays of what a model's `act` returns, under their names."""
    return ArraySacActResult(*arrays) if isinstance(model, SacActor) else ArrayActResult(*arrays)


class DeviceActor:
    """A model that acts on a device of its own. Owns the buffers of its batches and its random generator."""

    def __init__(self, model: ActingModel, device: torch.device, seed: int, compile: Compile = "auto") -> None:
        """Takes a model that is on `device`; `compile` is as in the settings."""
        self._model = model
        self._device = device
        self._seed = seed
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._makes_graphs = device.type == "cuda" and compile in ("auto", "cuda_graph")
        self._batches: dict[int, _Batch] = {}
        self._num_rows = 0
        self._notice: str | None = None

    @property
    def obs(self) -> npt.NDArray[Any]:
        """The observations that were gathered."""
        return self._batch.arrays[0][: self._num_rows]

    def gather(self, parts: Sequence[Part]) -> None:
        """Takes in what is to be acted on: of splits of equal size."""
        num_rows = len(parts[0][0])
        size = num_rows * (1 << (len(parts) - 1).bit_length())
        if size not in self._batches:
            self._batches[size] = _Batch(self._run, size, parts[0], self._device)
            if self._makes_graphs:
                self._batches[size].make_graph(self._generator)
        self._batch = self._batches[size]
        self._num_rows = num_rows * len(parts)
        for array, fields in zip(self._batch.arrays, zip(*parts, strict=True), strict=True):
            np.concatenate(fields, out=array[: self._num_rows])

    def act(self) -> ActionAnswer:
        """What the policy says of what was gathered; the arrays are overwritten by the next call."""
        try:
            arrays = self._batch.run()
        except Exception as error:
            if not self._makes_graphs:
                raise
            # Nothing is computed while a graph is captured, so this batch is still to be run.
            self._notice = f"Inference runs without CUDA graphs, because capturing one failed: {short_reason(error)}"
            log.warning("capturing a CUDA graph of inference failed", exc_info=True)
            self._makes_graphs = False
            for batch in self._batches.values():
                batch.drop_graph()
            # The one that the capture took part in may refuse to draw outside of one (PyTorch up to 2.12).
            another = derive_seed(self._seed, Stream.SECOND_ATTEMPT)
            self._generator = torch.Generator(device=self._device).manual_seed(another)
            arrays = self._batch.run()
        return answer_of(self._model, [array[: self._num_rows] for array in arrays])

    def pop_warning(self) -> str | None:
        """What the user should know of how batches are run, once."""
        notice, self._notice = self._notice, None
        return notice

    def _run(self, obs: Tensor, state: Tensor) -> list[Tensor]:
        return [*self._model.act(obs, self._generator, state)]


class _Batch:
    """Buffers of one size of batch, and how to run it."""

    def __init__(
        self, run: Callable[[Tensor, Tensor], list[Tensor]], size: int, fields: Part, device: torch.device
    ) -> None:
        shapes = [((size, *field.shape[1:]), torch.from_numpy(field[:0]).dtype) for field in fields]
        self._host_inputs = [host_buffer(shape, dtype, device) for shape, dtype in shapes]
        self.arrays: list[npt.NDArray[Any]] = [buffer.numpy() for buffer in self._host_inputs]
        self._inputs = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        self._device = device
        self._run = run
        self._call: Callable[[], Tensor] = self._packed
        self._layout: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._host_output: Tensor | None = None
        self._answers: list[npt.NDArray[Any]] = []

    def make_graph(self, generator: torch.Generator) -> None:
        self._call = GraphedFunction(self._packed, self._device, generator)

    def drop_graph(self) -> None:
        self._call = self._packed

    def run(self) -> list[npt.NDArray[Any]]:
        """Answers to what is in the buffers, as arrays that the next call overwrites."""
        for own, given in zip(self._inputs, self._host_inputs, strict=True):
            own.copy_(given, non_blocking=True)
        packed = self._call()
        if self._host_output is None:
            self._host_output = host_buffer((packed.numel(),), torch.uint8, self._device)
            self._answers = self._unpacked(self._host_output)
        self._host_output.copy_(packed, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return self._answers

    def _packed(self) -> Tensor:
        """All answers, one behind the other, as bytes."""
        outputs = self._run(*self._inputs)
        self._layout = [(tuple(output.shape), output.dtype) for output in outputs]
        return torch.cat([output.contiguous().view(-1).view(torch.uint8) for output in outputs])

    def _unpacked(self, packed: Tensor) -> list[npt.NDArray[Any]]:
        arrays, start = [], 0
        for shape, dtype in self._layout:
            stop = start + int(np.prod(shape)) * dtype.itemsize
            arrays.append(packed[start:stop].view(dtype).view(shape).numpy())
            start = stop
        return arrays
