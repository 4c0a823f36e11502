"""Moves slots between the rings and the learner's book of them.

A thread of its own keeps the slots moving while the other one trains, so no split waits for a minibatch to end. Both
work on the ledger under one lock, and whoever holds it is the one producer of the granting rings.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.departures import Departures
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.wake import Waker
from asyncrl.learner.slot_ledger import Columns, SlotLedger

WAIT_S = 0.1


class SlotExchange:
    """Moves slots between the rings and the ledger; safe to call from both of the learner's threads."""

    def __init__(
        self,
        ledger: SlotLedger,
        ready: Sequence[IndexRing],
        granted: Sequence[IndexRing],
        workers: Sequence[Waker],
        splits_per_worker: int,
        departures: Departures,
    ) -> None:
        """Takes the rings from and to each rollout worker, and their wakers, by the worker's index."""
        self._ledger = ledger
        self._ready = ready
        self._granted = granted
        self._workers = workers
        self._splits_per_worker = splits_per_worker
        self._departures = departures
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def poll(self) -> None:
        """Takes in ready slots and grants free ones; settles deaths of workers."""
        with self._changed:
            departed = self._departures.for_learner()
            slots = [slot for ring in self._ready for slot in ring.pop_all()]
            for slot in slots:
                self._ledger.add_ready(slot)
            for worker_idx in departed:
                self._take_over(worker_idx)
            woken = set()
            for split_idx, slot in self._ledger.grant():
                worker_idx = split_idx // self._splits_per_worker
                self._granted[worker_idx].push(slot)
                woken.add(worker_idx)
            if slots or departed:
                self._changed.notify_all()
        for worker_idx in woken:
            self._workers[worker_idx].wake()

    def serve(self, waker: Waker, control: RunControl) -> None:
        """Polls until the run has ended; the body of the learner's second thread."""
        try:
            while not control.ended:
                self.poll()
                waker.wait(WAIT_S)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """Takes the columns of a dataset, waiting for them at most `timeout_s`; None if there are too few."""
        with self._changed:
            self._check_thread()
            columns = self._ledger.take_dataset(learner_version)
            if columns is None and timeout_s > 0.0:
                self._changed.wait(timeout_s)
                self._check_thread()
                columns = self._ledger.take_dataset(learner_version)
            return columns

    def release(self, columns: list[Columns]) -> None:
        """Frees slots that were trained on and grants them again."""
        with self._changed:
            self._ledger.release(columns)
        self.poll()

    def begin_dataset(self) -> None:
        """With a fixed lag: grants the slots of the next dataset."""
        with self._changed:
            self._ledger.begin_dataset()
        self.poll()

    @property
    def num_ready(self) -> int:
        """Slots that wait to be trained on."""
        with self._changed:
            return self._ledger.num_ready

    @property
    def dropped_samples(self) -> int:
        """Samples dropped so far because they were too old, or their worker died."""
        with self._changed:
            return self._ledger.dropped_samples

    def _take_over(self, worker_idx: int) -> None:
        """Puts the rings of a dead worker in order; what it had handed over was taken in before.

        The other end of its granting ring is nobody's now, and the slots' words say what was in it.
        """
        self._granted[worker_idx].pop_all()
        first = worker_idx * self._splits_per_worker
        for _, slot in self._ledger.take_over(range(first, first + self._splits_per_worker)):
            self._granted[worker_idx].push(slot)
        self._departures.settle_as_learner(worker_idx)

    def _check_thread(self) -> None:
        if self._failure is not None:
            raise RuntimeError("the thread that exchanges slots failed") from self._failure
