"""A policy that answers requests for actions: newest weights in, actions straight into the slots out.

Rollout workers (local inference) and inference workers (central) act through this one class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.array_policy import ArrayActResult, ArrayPolicy, FloatArray
from asyncrl.models.flat import FlatParameters, block_size, read_block
from asyncrl.monitoring.phases import Phase, PhaseTimer


class ActingPolicy:
    """One process's copy of the policy. Owns the copy, its random generator and the batch buffers."""

    def __init__(
        self,
        model: ActorCritic,
        weights: WeightsChannel,
        slots: TrajectorySlots,
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
        self._slots = slots
        self._device = device
        self._publication = 0
        self._version = -1
        self._act = self._make_act(seed)
        self._batch = np.empty((0, slots.obs.shape[3]), dtype=np.float32)

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
        """Runs the policy on rows of observations and writes action, log-prob, value and version beside them.

        Args:
            places: (slot, row) of each split in the batch. The row after the last step gets a value only.
        """
        slots, num_envs = self._slots, self._slots.num_envs
        if len(places) == 1:
            obs = slots.obs[places[0]]
        else:
            size = len(places) * num_envs
            if size > len(self._batch):
                self._batch = np.empty((size, slots.obs.shape[3]), dtype=np.float32)
            obs = self._batch[:size]
            np.concatenate([slots.obs[place] for place in places], out=obs)
        self._phases.charge(Phase.GATHER)
        action, log_prob, value, parameters = self._act(obs)
        self._phases.charge(Phase.FORWARD)
        now = time.monotonic()
        for position, place in enumerate(places):
            envs = slice(position * num_envs, (position + 1) * num_envs)
            slots.value[place] = value[envs]
            slots.policy_version[place] = self._version
            slots.chosen_at[place] = now
            if place[1] < slots.rollout:
                slots.action[place] = action[envs]
                slots.action_parameters[place] = parameters[envs]
                slots.log_prob[place] = log_prob[envs]
        self._phases.charge(Phase.COPY)

    def _make_act(self, seed: int) -> Callable[[FloatArray], ArrayActResult]:
        if self._device.type == "cpu":
            return ArrayPolicy(self._model, seed).act
        generator = torch.Generator(device=self._device).manual_seed(seed)

        def act(obs: FloatArray) -> ArrayActResult:
            result = self._model.act(torch.from_numpy(obs).to(self._device), generator)
            return ArrayActResult(*(tensor.cpu().numpy() for tensor in result))

        return act
