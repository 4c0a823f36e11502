"""A policy that answers requests for actions: newest weights in, actions straight to where they are waited for.

Rollout workers (local inference) and inference workers (central) act through this one class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.answers import ActionAnswer, ObservationDesk
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.models.array_policy import ArrayActResult, ArraySacActResult, make_array_policy, runs_in_arrays
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.models.making import ActingModel
from asyncrl.models.sac import SacActor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.monitoring.phases import Phase, PhaseTimer

Act = Callable[[npt.NDArray[Any], npt.NDArray[Any]], ActionAnswer]
"""From observations and states of memory to what the policy says of them."""


class ActingPolicy:
    """One process's copy of the policy. Owns the copy, its random generator and the batch buffers."""

    def __init__(
        self,
        model: ActingModel,
        weights: WeightsChannel,
        desk: ObservationDesk,
        device: torch.device,
        seed: int,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Moves `model` to `device`; weights are fetched with `refresh`."""
        self._model = model.to(device).eval()
        self._flat = FlatParameters(self._model, with_grad=False)
        self._block = np.empty(block_size(self._model), dtype=np.float32)
        self._weights = weights
        self._phases = phases or PhaseTimer()
        self._desk = desk
        self._device = device
        self._publication = 0
        self._version = -1
        self._act = make_act(self._model, device, seed)
        self._act_untrained: Act = self._act
        if isinstance(model, SacActor):
            # The replay is filled with actions of the whole range until the first update.
            uniform = UniformPolicy(model.distribution, seed).act
            self._act_untrained = lambda obs, state: uniform(obs)
        self._batch: list[npt.NDArray[Any]] = []

    @property
    def version(self) -> int:
        """Policy version of the weights in use, -1 before the first."""
        return self._version

    def refresh(self) -> None:
        """Takes over newer weights if there are any.

        Raises:
            RuntimeError: none were ever published.
        """
        news = self._weights.read(self._block, self._publication)
        if news is not None:
            self._publication, self._version = news.number, news.version
            read_block(self._model, self._flat, torch.from_numpy(self._block))
        elif self._version < 0:
            raise RuntimeError("asked to act before any weights were published")
        self._phases.charge(Phase.FETCH)

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        """Runs the policy on rows of observations and writes what it says where each split looks for it.

        Args:
            places: of each split in the batch, as the desk names them.
        """
        desk, num_envs = self._desk, self._desk.num_envs
        if len(places) == 1:
            obs, state = desk.obs_at(places[0]), desk.rnn_state_at(places[0])
        else:
            obs, state = self._gather(places)
        self._phases.charge(Phase.GATHER)
        result = self._act(obs, state) if self._version > 0 else self._act_untrained(obs, state)
        self._phases.charge(Phase.FORWARD)
        now = time.monotonic()
        for position, place in enumerate(places):
            envs = slice(position * num_envs, (position + 1) * num_envs)
            desk.answer(place, envs, result, self._version, now)
        self._phases.charge(Phase.COPY)

    def _gather(self, places: Sequence[tuple[int, int]]) -> list[npt.NDArray[Any]]:
        """Observations and states of several places, one behind the other."""
        rows = [(self._desk.obs_at(place), self._desk.rnn_state_at(place)) for place in places]
        size = len(places) * self._desk.num_envs
        if not self._batch or size > len(self._batch[0]):
            self._batch = [np.empty((size, field.shape[1]), dtype=field.dtype) for field in rows[0]]
        batch = [buffer[:size] for buffer in self._batch]
        for fields, target in zip(zip(*rows, strict=True), batch, strict=True):
            np.concatenate(fields, out=target)
        return batch


def make_act(model: ActingModel, device: torch.device, seed: int) -> Act:
    """How a model acts: in NumPy on a CPU where that knows its networks, or by itself.

    Args:
        model: on `device`, its parameters flat.
        device: where it is.
        seed: of its random generator.
    """
    if device.type == "cpu" and runs_in_arrays(model):
        in_arrays = make_array_policy(model, seed).act
        return lambda obs, state: in_arrays(obs)
    generator = torch.Generator(device=device).manual_seed(seed)

    def act(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActionAnswer:
        result = model.act(torch.from_numpy(obs).to(device), generator, torch.from_numpy(state).to(device))
        arrays = (tensor.cpu().numpy() for tensor in result)
        return ArraySacActResult(*arrays) if isinstance(model, SacActor) else ArrayActResult(*arrays)

    return act
