"""Words by which the death of a rollout worker is told, and by which others say that they have let go of it.

A worker that dies leaves memory behind: rings of which it was one end, slots that it was filling, requests that nobody
will read the answer of. Its successor begins with all of it in order, because everyone else acts first, each once:

    runner             the process has ended for certain         died[w] += 1
    inference worker   drops its ring, closes its requests       server[w] = died[w]     (central inference only)
    learner            takes both rings and its slots over       learner[w] = died[w]    (trajectories only)
    runner             all have answered                         starts the next process

Each word has one writer. The learner waits for the inference worker, because that may still be writing an answer into
a slot of the dead worker until it has let go. An inference worker or learner that is itself started anew finds in the
words what it has to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.buffers.arena import Arena, ArraySpec


def departure_specs(num_workers: int) -> list[ArraySpec]:
    """Arrays of the words."""
    counts = [ArraySpec(f"departures.{word}", "int64", (num_workers,)) for word in ("died", "server", "learner")]
    return [*counts, ArraySpec("departures.total", "int64", (1,))]


class Departures:
    """Deaths of rollout workers, and who has settled them."""

    def __init__(self, arena: Arena, has_server: bool, has_slots: bool) -> None:
        """Views the words.

        Args:
            arena: the run's.
            has_server: whether inference workers answer requests.
            has_slots: whether the learner grants slots.
        """
        self._died = arena.words("departures.died")
        self._server = arena.words("departures.server")
        self._learner = arena.words("departures.learner")
        self._total = arena.words("departures.total")
        self._has_server = has_server
        self._has_slots = has_slots

    def announce(self, worker_idx: int) -> None:
        """Says that a worker's process has ended (runner)."""
        self._died[worker_idx] += 1
        self._total[0] += 1

    @property
    def total(self) -> int:
        """Deaths of all workers: one look tells whether there is anything new."""
        return int(self._total[0])

    def for_server(self, workers: Iterable[int]) -> list[int]:
        """Those of the workers whose death their inference worker has not settled."""
        return [worker for worker in workers if self._server[worker] != self._died[worker]]

    def settle_as_server(self, worker_idx: int) -> None:
        """Says that ring and requests of the dead worker are done with (its inference worker)."""
        self._server[worker_idx] = self._died[worker_idx]

    def for_learner(self) -> list[int]:
        """Workers whose death the learner has to settle now: nobody else touches what they left."""
        return [
            worker
            for worker in range(len(self._died))
            if self._learner[worker] != self._died[worker] and self._is_settled_by_server(worker)
        ]

    def settle_as_learner(self, worker_idx: int) -> None:
        """Says that rings and slots of the dead worker are in order (learner)."""
        self._learner[worker_idx] = self._died[worker_idx]

    def is_settled(self, worker_idx: int) -> bool:
        """Whether the worker may be started again (runner)."""
        settled_by_learner = not self._has_slots or self._learner[worker_idx] == self._died[worker_idx]
        return settled_by_learner and self._is_settled_by_server(worker_idx)

    def _is_settled_by_server(self, worker_idx: int) -> bool:
        return not self._has_server or self._server[worker_idx] == self._died[worker_idx]
