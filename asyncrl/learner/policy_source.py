"""With several policies: receives filled slots, and tells the workers which of them one policy needs no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.words import Words
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.policy_rows import PolicyRows
from asyncrl.learner.slot_ledger import Columns, ThreadedSource
from asyncrl.observers.reports import LagMetrics


class PolicySource(ThreadedSource):
    """Datasets of one policy (`DatasetSource` and `DatasetRoom`).

    consumes  numbers of filled slots, from a ring of each worker
    produces  datasets; `taken[slot] = filled[slot]` when the policy needs the slot's contents no more: in async right
              after they were copied; in sync for all slots together, after they were trained on

    The second thread copies slots. The numbers in the rings are hints: `filled` counts how often a
    slot was filled, and what was copied before is not copied again.

    Attributes:
        ready: filled slots that wait for room.
    """

    def __init__(
        self,
        rows: PolicyRows,
        filled: Words,
        taken: Words,
        ready: Sequence[IndexRing],
        workers: Sequence[Waker],
        slots_per_worker: int,
        is_async: bool,
    ) -> None:
        """Takes the words of all slots, and the ring from each rollout worker and its waker, by the worker's index."""
        super().__init__(self._take_columns)
        self._rows = rows
        self._filled, self._taken = filled, taken
        self._ready, self._workers = ready, workers
        self._slots_per_worker, self._is_async = slots_per_worker, is_async
        self._copied = list(taken)  # `filled` of each slot when it was copied
        self.ready: deque[int] = deque()
        self._to_mark: list[int] = []  # slots that were copied; in sync of this iteration
        self._dataset: Dataset | None = None

    def poll(self) -> None:
        """Receives the numbers of filled slots, and copies slots in this order as long as there is room."""
        with self._changed:
            for slot in [slot for ring in self._ready for slot in ring.pop_all()]:
                if self._filled[slot] > self._copied[slot] and slot not in self.ready:
                    self.ready.append(slot)
            num_waiting = len(self.ready)
            while self.ready and self._rows.add(self.ready[0]):
                slot = self.ready.popleft()
                self._copied[slot] = self._filled[slot]
                self._to_mark.append(slot)
                if not self._is_async and len(self._to_mark) == len(self._filled):
                    self._rows.complete()
            if len(self.ready) < num_waiting:
                self._changed.notify_all()
            woken = self._mark() if self._is_async else set()
        for worker_idx in woken:
            self._workers[worker_idx].wake()

    def _take_columns(self, learner_version: int) -> list[Columns] | None:
        self._dataset = self._rows.take(learner_version)
        return None if self._dataset is None else []

    def collect(self, columns: Sequence[Columns]) -> Dataset:
        """The dataset that was taken."""
        assert self._dataset is not None
        return self._dataset

    def lag(self, learner_version: int) -> LagMetrics:
        return self._rows.lag(learner_version)

    def begin_dataset(self) -> None:
        """Workers begin when their slots are free."""

    def release(self, columns: list[Columns]) -> None:
        """Allows the dataset to be overwritten, after newer weights were published, and in sync its slots."""
        with self._changed:
            self._dataset = None
            self._rows.release()
            woken = set() if self._is_async else self._mark()
        for worker_idx in woken:
            self._workers[worker_idx].wake()
        self.poll()

    @property
    def dropped_samples(self) -> int:
        return self._rows.dropped_samples

    def _mark(self) -> set[int]:
        """Marks the slots that were copied as taken; returns the workers that may fill them again."""
        slots, self._to_mark = self._to_mark, []
        for slot in slots:
            self._taken[slot] = self._copied[slot]
        return {slot // self._slots_per_worker for slot in slots}
