"""Gradients on their way from workers to the process that combines them: two places for each worker.

    FREE --write (worker)--> READY --take (combiner)--> TAKEN --free (combiner, after it has published)--> FREE

A worker without a free place waits, so no gradient is of weights that are many combinations old. A place becomes READY
after its gradient is whole: a worker that is killed before leaves it FREE, so its successor needs no repair.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.config.plan import PLACES_OF_A_WORKER

PLACES = PLACES_OF_A_WORKER


class PlaceState(enum.IntEnum):
    """Who may touch a place, see the module's diagram."""

    FREE = 0
    READY = 1
    TAKEN = 2


def gradient_specs(size: int, num_workers: int) -> list[ArraySpec]:
    """Arrays for gradients of `size` elements."""
    return [
        ArraySpec("gradients.values", "float32", (num_workers * PLACES, size)),
        ArraySpec("gradients.state", "int64", (num_workers * PLACES,)),
        ArraySpec("gradients.order", "int64", (num_workers * PLACES,)),
    ]


class GradientPlaces:
    """All places. A worker's are those from `PLACES` times its number on."""

    def __init__(self, arena: Arena) -> None:
        """Views the arrays that `gradient_specs` described."""
        self.values = arena.array("gradients.values")
        self._state = arena.words("gradients.state")
        self._order = arena.words("gradients.order")

    def free_place(self, worker_idx: int) -> int | None:
        """A place that the worker may write, None if it has to wait."""
        own = range(worker_idx * PLACES, (worker_idx + 1) * PLACES)
        return next((place for place in own if self._state[place] == PlaceState.FREE), None)

    def last_number(self, worker_idx: int) -> int:
        """The number of the last gradient that the worker has handed over, 0 if there was none."""
        return int(max(self._order[place] for place in range(worker_idx * PLACES, (worker_idx + 1) * PLACES)))

    def write(self, place: int, gradient: npt.NDArray[np.float32], number: int) -> None:
        """Hands a gradient over (worker); `number` counts the worker's own."""
        self.values[place] = gradient
        self._order[place] = number
        self._state[place] = PlaceState.READY

    @property
    def num_ready(self) -> int:
        """Gradients that may be taken."""
        return len(self._ready)

    @property
    def _ready(self) -> list[int]:
        return [place for place in range(len(self._state)) if self._state[place] == PlaceState.READY]

    def take(self, count: int) -> list[int] | None:
        """Takes `count` gradients, of each worker the oldest first (combiner); None while there are fewer."""
        ready = self._ready
        if len(ready) < count:
            return None
        taken = sorted(ready, key=lambda place: self._order[place])[:count]
        for place in taken:
            self._state[place] = PlaceState.TAKEN
        return taken

    def free(self, places: Sequence[int]) -> None:
        """Gives places back (combiner)."""
        for place in places:
            self._state[place] = PlaceState.FREE
