"""Several policies in one process: each answers the columns that it plays, with its own newest weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.array_policies import ArrayPolicies
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.observers.reports import Phase, PhaseTimer
from asyncrl.processes.own_settings import own_settings

_MOST_ORDERS = 64

IndexArray = npt.NDArray[np.intp]


class _Order(NamedTuple):
    """The columns of a batch, sorted by their policies.

    Attributes:
        columns: [B], the columns in this order.
        played: [B], their policies in this order.
        positions: [B], the position of each column in this order.
        parts: each policy that plays a column, and its part of this order.
    """

    columns: IndexArray
    played: IndexArray
    positions: IndexArray
    parts: list[tuple[int, slice]]


class ActingPolicies:
    """Answers requests as `ActingPolicy` does, for P policies; `TrajectorySlots.policy_idx` says who plays a column.

    The policies act on the columns in the order of their numbers. If all are perceptrons of one architecture on a CPU,
    they act together (`ArrayPolicies`), otherwise one after the other.
    """

    def __init__(
        self, policies: Sequence[ActingPolicy], slots: TrajectorySlots, seed: int, phases: PhaseTimer | None = None
    ) -> None:
        """Takes the policies by their numbers; `seed` is for drawing actions of policies that act together."""
        assert slots.policy_idx is not None
        self._policies = list(policies)
        self._slots = slots
        self._policy_idx = slots.policy_idx
        self._phases = phases or PhaseTimer()
        self._versions = np.full(len(policies), -1, dtype=np.int64)
        self._orders: dict[bytes, _Order] = {}
        models = [policy.model for policy in policies if isinstance(policy.model, ActorCritic)]
        assert len(models) == len(policies), "a replay has one policy"
        self._models = models
        self._together = ArrayPolicies(models, seed) if ArrayPolicies.can_run(models) else None
        self._inputs: list[npt.NDArray[Any]] = [
            np.empty((0, field.shape[-1]), field.dtype) for field in (slots.obs, slots.rnn_state)
        ]
        self._results = self._room(0)

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        """Runs the newest policies on rows of observations; see `ActingPolicy.answer`."""
        slots = self._slots
        played = [self._policy_idx[place] for place in places]
        order = self._order_of(played[0] if len(places) == 1 else np.concatenate(played))
        for policy_idx, _ in order.parts:
            policy = self._policies[policy_idx]
            if policy.refresh():
                self._versions[policy_idx] = policy.version
                if self._together is not None:
                    self._together.read(policy_idx, self._models[policy_idx])
        self._phases.charge(Phase.FETCH)
        obs, state = self._gather(places, order.columns)
        self._phases.charge(Phase.GATHER)
        with own_settings():
            if self._together is not None:
                result = self._together.act(obs, order.played, order.parts)
            else:
                result = self._act_each(obs, state, order.parts)
        self._phases.charge(Phase.FORWARD)
        now, num_columns = time.monotonic(), slots.num_envs
        for number, (place, policy_idx) in enumerate(zip(places, played, strict=True)):
            positions = order.positions[number * num_columns : (number + 1) * num_columns]
            slots.answer(place, positions, result, self._versions[policy_idx], now)
        self._phases.charge(Phase.COPY)

    def pop_warning(self) -> str | None:
        """A warning for the user about how a policy runs, once for each."""
        return next((warning for policy in self._policies if (warning := policy.pop_warning()) is not None), None)

    def _order_of(self, played: npt.NDArray[np.int16]) -> _Order:
        """The order of columns for the policies that play them; it changes only when episodes begin, so it is kept."""
        key = played.tobytes()
        order = self._orders.get(key)
        if order is None:
            columns = np.argsort(played, kind="stable")
            positions = np.empty_like(columns)
            positions[columns] = np.arange(len(columns))
            stops = np.cumsum(np.bincount(played, minlength=len(self._policies))).tolist()
            starts = [0, *stops[:-1]]
            parts = [
                (idx, slice(start, stop))
                for idx, (start, stop) in enumerate(zip(starts, stops, strict=True))
                if start < stop
            ]
            if len(self._orders) == _MOST_ORDERS:
                self._orders.clear()
            order = self._orders[key] = _Order(columns, played[columns].astype(np.intp), positions, parts)
        return order

    def _gather(
        self, places: Sequence[tuple[int, int]], columns: IndexArray
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Observations `[B, row_size]` and recurrent states `[B, S]` of the columns, in their order."""
        size = len(columns)
        if size > len(self._inputs[0]):
            self._inputs = [np.empty((size, field.shape[1]), field.dtype) for field in self._inputs]
        gathered = [field[:size] for field in self._inputs]
        for array, target in zip((self._slots.obs, self._slots.rnn_state), gathered, strict=True):
            if target.shape[1] > 0:
                rows = array[places[0]] if len(places) == 1 else np.concatenate([array[place] for place in places])
                rows.take(columns, axis=0, out=target, mode="clip")
        return gathered[0], gathered[1]

    def _act_each(
        self, obs: npt.NDArray[Any], state: npt.NDArray[Any], parts: Sequence[tuple[int, slice]]
    ) -> ActorOutput:
        if len(obs) > len(self._results.value):
            self._results = self._room(len(obs))
        for policy_idx, rows in parts:
            policy = self._policies[policy_idx]
            # Policies may have spaces and recurrent states of different sizes; each uses the beginning of the row.
            model = self._models[policy_idx]
            size = model.rnn_state_size
            own = policy.act(obs[rows, : model.layout.row_size], state[rows, :size])
            for target, field in zip(self._results[:4], own[:4], strict=True):  # action to action_parameters
                beginnings = (rows, *map(slice, field.shape[1:]))
                target[beginnings] = field
            if size > 0:
                self._results.rnn_state[rows, :size] = own.rnn_state
        return self._results

    def _room(self, size: int) -> ActorOutput:
        """Arrays for the results of a batch, as the slots store them."""
        slots = self._slots
        fields = (slots.action, slots.log_prob, slots.value, slots.action_parameters, slots.rnn_state)
        return ActorOutput(*(np.zeros((size, *field.shape[3:]), field.dtype) for field in fields))
