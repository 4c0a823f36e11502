"""Gradients of Hogwild workers on their way from a pool to the process that combines them.

    learner's machine                                               pool
    GradientPlaces -- free places --> GradientReceiver ----> GradientSender: frees them for its workers
    GradientPlaces <-- gradients ---- GradientReceiver <---- GradientSender: those that they have written

Place n of the learner's arena is place n of the pool's, so nothing is translated. A place is leased to the pool from
the permit until it has sent the gradient. A permit waits for the weights that it names, so a worker that may write
again has weights as new as on the learner's machine.

With gradients go the states of the pool's workers: statistics of observations and returns, and how many steps were
used. A pool that takes the place of a dead one continues them; steps of which no gradient arrived count as dropped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.shared_tensors import RUN
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import PLACES_OF_A_WORKER
from asyncrl.contrib.ray_pools.batches import Sender, SentGradients
from asyncrl.contrib.ray_pools.worker_states import WorkerState, WorkerStates
from asyncrl.run.setup import RunSetup

_LOOK_EVERY_S = 0.1
"""A worker that has made its last step wakes nobody."""


class GradientReceiver:
    """Takes the place of a pool's workers for the parameter server: writes their gradients, leases their places."""

    def __init__(self, setup: RunSetup, workers: Sequence[int]) -> None:
        self._places = GradientPlaces(setup.arena)
        self._states = WorkerStates(setup.arena)
        self._steps_before = {worker_idx: setup.control.collected_steps(worker_idx) for worker_idx in workers}
        self._leased: set[int] = set()

    @property
    def start(self) -> list[WorkerState]:
        """The states that the workers of a new pool continue; steps of theirs that were not used are below 0."""
        states = [self._states.read(worker_idx) for worker_idx in self._steps_before]
        return [
            dataclasses.replace(
                state, used_steps=state.used_steps - self._steps_before[state.worker_idx], has_finished=False
            )
            for state in states
        ]

    def take_permits(self) -> list[tuple[int, int]]:
        permits = [
            (worker_idx, place)
            for worker_idx in self._steps_before
            for place in self._places.free_places(worker_idx)
            if place not in self._leased
        ]
        self._leased.update(place for _, place in permits)
        return permits

    def write(self, payload: SentGradients, offset_s: float) -> None:
        """Hands gradients over to the parameter server; that their workers have finished is written last.

        Raises:
            RuntimeError: the pool does not have one of the places.
        """
        for place, gradient in zip(payload.places, payload.content, strict=True):
            if place not in self._leased:
                raise RuntimeError(f"a gradient came for place {place}, which the pool does not have")
            self._leased.remove(place)
            self._places.write(place, gradient, self._places.last_number(place // PLACES_OF_A_WORKER) + 1)
        for state in payload.states:
            used_steps = state.used_steps + self._steps_before[state.worker_idx]
            self._states.write(dataclasses.replace(state, used_steps=used_steps))


class GradientSender(Sender):
    """Frees places for the workers of the pool, and packs the gradients that they have written.

    No sample is dropped here: the successor of a dead worker reports its unfinished rollout.
    """

    def __init__(
        self, setup: RunSetup, waker: Waker, workers: Mapping[int, Waker], start: Sequence[WorkerState]
    ) -> None:
        super().__init__(setup, waker, workers, start)
        arena = setup.arena
        self._places = GradientPlaces(arena)
        self._places.take_all()
        self._states = WorkerStates(arena)
        for state in start:
            self._states.write(state)
        self._channel = WeightsChannel(arena)
        self._num_updates = [
            arena.words(spec.name)
            for spec in arena.specs
            if spec.name.startswith("shared.") and spec.name.endswith(".steps")
        ]
        self._sent = [self._state_of(worker_idx) for worker_idx in workers]

    def record_publication(self, number: int) -> None:
        for words in self._num_updates:  # the version counts the updates of all workers
            words[RUN] = self._channel.newest.version
        super().record_publication(number)

    def use(self, permits: Sequence[tuple[int, int]]) -> None:
        for worker_idx, place in permits:
            self._places.free([place])
            self._workers[worker_idx].wake()

    def take(self, timeout_s: float) -> SentGradients | None:
        deadline = time.monotonic() + timeout_s
        while (sent := self._take_now()) is None and (left_s := deadline - time.monotonic()) > 0.0:
            self._waker.wait(min(left_s, _LOOK_EVERY_S))
        return sent

    def _take_now(self) -> SentGradients | None:
        # Before the places are taken: steps of a gradient that is not sent yet are not used, and its worker is at work.
        states = [self._state_of(worker_idx) for worker_idx in self._workers]
        places = self._places.take(len(self._places.ready_places())) or []
        if not places and states == self._sent:
            return None
        self._sent = states
        with_moments = {place // PLACES_OF_A_WORKER for place in places}
        return SentGradients(
            places,
            self._places.values[places].copy(),
            [
                dataclasses.replace(state, moments=self._states.moments_of(state.worker_idx))
                if state.worker_idx in with_moments
                else state
                for state in states
            ],
        )

    def _state_of(self, worker_idx: int) -> WorkerState:
        """The state of a worker without its statistics, which go with its gradients."""
        return self._states.read(worker_idx, with_moments=False)
