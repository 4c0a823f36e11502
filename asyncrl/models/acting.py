"""A policy that answers requests for actions: newest weights in, actions straight to where they are waited for.

Rollout workers (local inference) and inference workers (central) act through this one class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from asyncrl.buffers.answers import ActionAnswer, ObservationDesk
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.models.array_policy import make_array_policy, runs_in_arrays
from asyncrl.models.cuda_graph import Compile
from asyncrl.models.device_acting import DeviceActor, Part, answer_of
from asyncrl.models.factory import ActingModel
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.models.sac import SacActor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.monitoring.phases import Phase, PhaseTimer

Act = Callable[[npt.NDArray[Any], npt.NDArray[Any]], ActionAnswer]
"""From observations and recurrent states to the policy's answers."""


class Actor(Protocol):
    """Acts on batches."""

    @property
    def obs(self) -> npt.NDArray[Any]:
        """The observations that were gathered, `[B, row_size]`."""

    def gather(self, parts: Sequence[Part]) -> None:
        """Takes in what is to be acted on: of splits of equal size."""

    def act(self) -> ActionAnswer:
        """What the policy says of what was gathered; the arrays may be overwritten by the next call."""

    def pop_warning(self) -> str | None:
        """What the user should know of how batches are run, once."""


class ActingPolicy:
    """One process's copy of the policy. Owns the copy and what acts with it."""

    def __init__(
        self,
        model: ActingModel,
        weights: WeightsChannel,
        desk: ObservationDesk,
        device: torch.device,
        seed: int,
        phases: PhaseTimer | None = None,
        compile: Compile = "auto",
    ) -> None:
        """Moves `model` to `device`; weights are fetched with `refresh`."""
        self._model = model.to(device).eval()
        self._flat = FlatParameters(self._model, with_grad=False)
        self._block = torch.empty(block_size(self._model))
        self._device = device
        self._reads_on_device = False
        self._weights = weights
        self._phases = phases or PhaseTimer()
        self._desk = desk
        self._publication = 0
        self._version = -1
        self._actor = make_actor(self._model, device, seed, compile)
        self._act = self._act_untrained = self._actor.act
        if isinstance(model, SacActor):
            # The replay is filled with actions of the whole range until the first update.
            uniform = UniformPolicy(model.distribution, seed, model.layout)
            self._act_untrained = lambda: uniform.act(self._actor.obs)

    @property
    def version(self) -> int:
        """Policy version of the weights in use, -1 before the first."""
        return self._version

    def refresh(self) -> None:
        """Takes over newer weights if there are any.

        Raises:
            RuntimeError: none were ever published.
        """
        if self._publication == 0 and self._weights.num_publications > 0 and self._weights.find(self._device):
            self._reads_on_device = True
            self._block = self._block.to(self._device)
        if self._reads_on_device:
            news = self._weights.read_on_device(self._block, self._publication)
        else:
            news = self._weights.read(self._block.numpy(), self._publication)
        if news is not None:
            self._publication, self._version = news.number, news.version
            read_block(self._model, self._flat, self._block)
        elif self._version < 0:
            raise RuntimeError("asked to act before any weights were published")
        self._phases.charge(Phase.FETCH)

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        """Runs the policy on rows of observations and writes what it says where each split looks for it.

        Args:
            places: of each split in the batch, as the desk names them.
        """
        desk, num_envs = self._desk, self._desk.num_envs
        self._actor.gather([desk.inputs_at(place) for place in places])
        self._phases.charge(Phase.GATHER)
        result = self._act() if self._version > 0 else self._act_untrained()
        self._phases.charge(Phase.FORWARD)
        now = time.monotonic()
        for position, place in enumerate(places):
            envs = slice(position * num_envs, (position + 1) * num_envs)
            desk.answer(place, envs, result, self._version, now)
        self._phases.charge(Phase.COPY)

    def pop_warning(self) -> str | None:
        """What the user should know of how the policy is run, once."""
        return self._actor.pop_warning()


class HostActor:
    """A policy that acts on the host. Owns the batch buffers."""

    def __init__(self, act: Act) -> None:
        """Takes what acts."""
        self._act = act
        self._buffers: list[npt.NDArray[Any]] = []
        self.obs: npt.NDArray[Any] = np.empty((0, 0), np.float32)
        self._state = self.obs

    def gather(self, parts: Sequence[Part]) -> None:
        """See `Actor`; what a single part has is not copied."""
        if len(parts) == 1:
            self.obs, self._state = parts[0]
            return
        size = sum(len(obs) for obs, _ in parts)
        if not self._buffers or size > len(self._buffers[0]):
            self._buffers = [np.empty((size, field.shape[1]), dtype=field.dtype) for field in parts[0]]
        self.obs, self._state = (buffer[:size] for buffer in self._buffers)
        for fields, target in zip(zip(*parts, strict=True), (self.obs, self._state), strict=True):
            np.concatenate(fields, out=target)

    def act(self) -> ActionAnswer:
        """See `Actor`."""
        return self._act(self.obs, self._state)

    def pop_warning(self) -> None:
        """See `Actor`; there is one way to run it."""


def make_actor(model: ActingModel, device: torch.device, seed: int, compile: Compile = "auto") -> Actor:
    """What acts for a model: on a CPU in NumPy where that knows its networks, or by itself.

    Args:
        model: on `device`, its parameters flat.
        device: where it is.
        seed: of its random generator.
        compile: as in the settings.
    """
    if device.type != "cpu":
        return DeviceActor(model, device, seed, compile)
    if runs_in_arrays(model):
        in_arrays = make_array_policy(model, seed).act
        return HostActor(lambda obs, state: in_arrays(obs))
    generator = torch.Generator().manual_seed(seed)

    def act(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActionAnswer:
        result = model.act(torch.from_numpy(obs), generator, torch.from_numpy(state))
        return answer_of(model, [tensor.numpy() for tensor in result])

    return HostActor(act)


def make_act(model: ActingModel, device: torch.device, seed: int) -> Act:
    """The same as a function of the observations and states of one split."""
    actor = make_actor(model, device, seed, compile="off")

    def act(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActionAnswer:
        actor.gather([(obs, state)])
        return actor.act()

    return act
