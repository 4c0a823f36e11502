"""Gradients from workers to the process that combines them: two places for each worker.

    FREE --write (worker)--> READY --take (combiner)--> TAKEN --free (combiner, after it has published)--> FREE

A worker without a free place waits, so no gradient belongs to weights that are many combinations old. A place becomes
READY after its gradient is complete: if a worker is killed before, the place stays FREE and its successor writes it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.plan import PLACES_OF_A_WORKER as PLACES


class PlaceState(enum.IntEnum):
    """Who may use a place; see the module's diagram."""

    FREE = 0
    READY = 1
    TAKEN = 2


def gradient_specs(size: int, num_workers: int) -> list[ArraySpec]:
    return [
        ArraySpec("gradients.values", "float32", (num_workers * PLACES, size)),
        ArraySpec("gradients.state", "int64", (num_workers * PLACES,)),
        ArraySpec("gradients.order", "int64", (num_workers * PLACES,)),
    ]


class GradientPlaces:
    """The places of all workers; those of worker w begin at w * `PLACES`.

    Attributes:
        values: [places, N] float32, the gradients.
    """

    def __init__(self, arena: Arena) -> None:
        self.values = arena.array("gradients.values")
        self._state = arena.words("gradients.state")
        self._order = arena.words("gradients.order")

    def free_places(self, worker_idx: int) -> list[int]:
        """Returns the places that the worker may write."""
        places = range(worker_idx * PLACES, (worker_idx + 1) * PLACES)
        return [place for place in places if self._state[place] == PlaceState.FREE]

    def free_place(self, worker_idx: int) -> int | None:
        """Returns a place that the worker may write, None if it has to wait."""
        return next(iter(self.free_places(worker_idx)), None)

    def last_number(self, worker_idx: int) -> int:
        """Returns the number of the worker's last gradient, 0 if there was none."""
        return max(self._order[worker_idx * PLACES + place] for place in range(PLACES))

    def write(self, place: int, gradient: npt.NDArray[np.float32], number: int) -> None:
        """Hands a gradient over (worker); `number` counts the gradients of the worker."""
        self.values[place] = gradient
        self._order[place] = number
        self._state[place] = PlaceState.READY

    def ready_places(self) -> list[int]:
        """Returns the places whose gradients may be taken."""
        return [place for place, state in enumerate(self._state) if state == PlaceState.READY]

    def take(self, count: int) -> list[int] | None:
        """Takes `count` gradients, the oldest of those that are ready (combiner); None while there are fewer.

        A worker's second gradient may be taken first if both become ready while the places are looked at.
        """
        ready = self.ready_places()
        if len(ready) < count:
            return None
        taken = sorted(ready, key=self._order.__getitem__)[:count]
        for place in taken:
            self._state[place] = PlaceState.TAKEN
        return taken

    def take_all(self) -> None:
        """Takes all places, whatever they hold, so that nobody may write before they are freed (combiner)."""
        for place in range(len(self._state)):
            self._state[place] = PlaceState.TAKEN

    def free(self, places: Sequence[int]) -> None:
        """Frees places that were taken (combiner)."""
        for place in places:
            self._state[place] = PlaceState.FREE
