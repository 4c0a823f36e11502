"""Acting on an accelerator: few batch sizes, one transfer in each direction, and one CUDA graph for each size.

Batches are padded to the next power of two of splits, so that few graphs are needed; results of the padding are
discarded. Observations are gathered in page-locked memory; all results return as one block of bytes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.buffers.pinning import host_buffer
from asyncrl.models.cuda_graph import Compile, GraphedFunction, short_reason
from asyncrl.models.factory import ActingModel
from asyncrl.processes.seeding import Stream, derive_seed

log = logging.getLogger(__name__)

Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Observations `[E, row_size]` of a split, and the recurrent states `[E, S]` before them."""


class DeviceActor:
    """A model that acts on its device. Owns its batch buffers and its random generator."""

    def __init__(self, model: ActingModel, device: torch.device, seed: int, compile: Compile = "auto") -> None:
        self._model = model
        self._device = device
        self._seed = seed
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._makes_graphs = device.type == "cuda" and compile in ("auto", "cuda_graph")
        self._batches: dict[int, _Batch] = {}
        self._warning: str | None = None

    def gather(self, parts: Sequence[Part]) -> Part:
        """Copies the inputs of splits of equal size to the buffers; returns them as `act` takes them."""
        num_rows = len(parts[0][0])
        size = num_rows * (1 << (len(parts) - 1).bit_length())
        if size not in self._batches:
            self._batches[size] = batch = _Batch(self._run, size, parts[0], self._device)
            if self._makes_graphs:
                batch.call = GraphedFunction(batch.run_and_pack, self._device, self._generator)
        self._batch = self._batches[size]
        gathered = [buffer[: num_rows * len(parts)] for buffer in self._batch.arrays]
        for array, fields in zip(gathered, zip(*parts, strict=True), strict=True):
            np.concatenate(fields, out=array)
        return gathered[0], gathered[1]

    def act(self, obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActorOutput:
        """Results for the inputs of the last `gather`; the next call overwrites them."""
        try:
            arrays = self._batch.run()
        except Exception as error:
            if not self._makes_graphs:
                raise
            # Capturing computes nothing, so this batch still has to run.
            self._warning = f"Inference runs without CUDA graphs, because capturing one failed: {short_reason(error)}"
            log.warning("capturing a CUDA graph of inference failed", exc_info=True)
            self._makes_graphs = False
            for batch in self._batches.values():
                batch.call = batch.run_and_pack
            # PyTorch up to 2.12 may refuse to draw from the captured generator outside of a graph.
            another = derive_seed(self._seed, Stream.SECOND_ATTEMPT)
            self._generator = torch.Generator(device=self._device).manual_seed(another)
            arrays = self._batch.run()
        return ActorOutput(**{name: array[: len(obs)] for name, array in arrays.items()})

    def pop_warning(self) -> str | None:
        """A warning for the user about how batches run, once."""
        warning, self._warning = self._warning, None
        return warning

    def _run(self, obs: Tensor, state: Tensor) -> dict[str, Tensor]:
        return self._model.act_in_training(obs, self._generator, state)


class _Batch:
    """Buffers for one batch size."""

    def __init__(
        self, run: Callable[[Tensor, Tensor], dict[str, Tensor]], size: int, fields: Part, device: torch.device
    ) -> None:
        shapes = [((size, *field.shape[1:]), torch.from_numpy(field[:0]).dtype) for field in fields]
        self._host_inputs = [host_buffer(shape, dtype, device) for shape, dtype in shapes]
        self.arrays: list[npt.NDArray[Any]] = [buffer.numpy() for buffer in self._host_inputs]
        self._inputs = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        self._device = device
        self._run = run
        self.call: Callable[[], Tensor] = self.run_and_pack  # or a graph of it
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._host_output: Tensor | None = None
        self._results: dict[str, npt.NDArray[Any]] = {}

    def run(self) -> dict[str, npt.NDArray[Any]]:
        """Fields of `ActorOutput` for the inputs in `arrays`; the next call overwrites them."""
        for device_input, host_input in zip(self._inputs, self._host_inputs, strict=True):
            device_input.copy_(host_input, non_blocking=True)
        packed = self.call()
        if self._host_output is None:
            self._host_output = host_buffer((packed.numel(),), torch.uint8, self._device)
            start = 0
            for name, (shape, dtype) in self._layout.items():
                stop = start + math.prod(shape) * dtype.itemsize
                self._results[name] = self._host_output[start:stop].view(dtype).view(shape).numpy()
                start = stop
        self._host_output.copy_(packed, non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return self._results

    def run_and_pack(self) -> Tensor:
        """All results as consecutive bytes."""
        outputs = self._run(*self._inputs)
        self._layout = {name: (tuple(output.shape), output.dtype) for name, output in outputs.items()}
        return torch.cat([output.contiguous().view(-1).view(torch.uint8) for output in outputs.values()])
