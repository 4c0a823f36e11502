"""Which slot is whose, and whose turn is next: the learner's book of all slots.

Sync: all slots are granted together, equally to every split, once all of them are free. Async: a split that has handed
over its slot gets any free one, first come, first served, so a slow worker holds up nobody; collecting pauses by itself
when no slot is free. A slot stays charged until its last column was trained on and newer weights were published.
Fixed lag: as in sync, but there are slots for two datasets, and those of the next are granted when the learner says so,
which it does as it begins to train: nobody collects then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import SlotState, TrajectorySlots
from asyncrl.config.plan import ResourcePlan


@dataclass(frozen=True)
class Columns:
    """Columns `start` to `stop` of a slot, and whether they are its last."""

    slot: int
    start: int
    stop: int
    is_last: bool


class SlotReader(Protocol):
    """What reads slots on its own time, between the two calls for each."""

    def start_copy(self, slot: int) -> None:
        """The slot is ready."""

    def settle(self, slot: int) -> None:
        """The slot is about to be freed: waits until it is not read any more."""


class SlotLedger:
    """The order of ready slots and free slots. Used by the learner process alone, under its lock.

    Attributes:
        ready: slots that wait to be trained on, in the order in which they became ready.
        dropped_samples: valid samples dropped so far because they were too old, or their worker died.
    """

    def __init__(self, slots: TrajectorySlots, plan: ResourcePlan, reader: SlotReader | None = None) -> None:
        """Takes ownership of the slots, all of which are free."""
        self._slots = slots
        self._reader = reader
        self._plan = plan
        self._free: deque[int] = deque(range(slots.num_slots))
        self._waiting_splits: deque[int] = deque(range(plan.num_splits))
        self.ready: deque[int] = deque()
        self.dropped_samples = 0
        self._next_column = 0
        self._may_begin_dataset = True
        self._columns_per_dataset, self._num_splits = plan.columns_per_dataset, plan.num_splits

    def add_ready(self, slot: int) -> None:
        """Notes that a split has handed over its slot."""
        if self._reader is not None:
            self._reader.start_copy(slot)
        self.ready.append(slot)
        self._waiting_splits.append(self._slots.owner[slot])

    def take_over(self, splits: Container[int]) -> list[tuple[int, int]]:
        """Puts in order what a worker that died has left behind, by the slots' words alone.

        A slot that it had finished is handed over, whether or not the news of it arrived. One that it was filling is
        emptied and granted to the same split again, so that a dataset in sync mode stays complete.

        Args:
            splits: all splits of the worker.

        Returns:
            (split, slot) of each grant.
        """
        grants = []
        for slot in range(self._slots.num_slots):
            split_idx, state = self._slots.owner[slot], self._slots.state(slot)
            if split_idx not in splits:
                continue
            if state == SlotState.READY and slot not in self.ready:
                self.add_ready(slot)
            elif state == SlotState.FILLING:
                self.dropped_samples += self._slots.grant_again(slot)
                grants.append((split_idx, slot))
        return grants

    def grant(self) -> list[tuple[int, int]]:
        """Grants what may be granted now.

        Returns:
            (split, slot) of each grant.
        """
        plan, free = self._plan, self._free
        if plan.async_rl and not plan.fixed_lag:
            splits = [self._waiting_splits.popleft() for _ in range(min(len(free), len(self._waiting_splits)))]
        else:
            # All slots of a dataset together, equally to every split.
            num_slots = self._slots.num_slots // (2 if plan.fixed_lag else 1)
            if len(free) < num_slots or not self._may_begin_dataset:
                return []
            self._may_begin_dataset = not plan.fixed_lag
            self._waiting_splits.clear()
            each = num_slots // self._num_splits
            splits = [split_idx for split_idx in range(self._num_splits) for _ in range(each)]
        grants = [(split_idx, free.popleft()) for split_idx in splits]
        for split_idx, slot in grants:
            self._slots.grant(slot, split_idx)
        return grants

    def take_dataset(self, learner_version: int) -> list[Columns] | None:
        """Takes the columns of one dataset in the order in which their slots became ready.

        Args:
            learner_version: the policy version that will train on them; slots with an older sample than
                `max_policy_lag` allows are dropped first.

        Returns:
            The columns, or None while there are too few.
        """
        oldest_allowed = learner_version - self._plan.max_policy_lag
        for slot in list(self.ready):
            if self._slots.policy_version[slot, :-1].min() >= oldest_allowed:
                continue
            first_column = 0
            if slot == self.ready[0]:
                first_column, self._next_column = self._next_column, 0
            if first_column == 0:
                self._slots.take(slot)
            self.dropped_samples += int(self._slots.valid[slot, :, first_column:].sum())
            self.ready.remove(slot)
            self._free_slot(slot)
        num_envs, wanted = self._slots.num_envs, self._columns_per_dataset
        if len(self.ready) * num_envs - self._next_column < wanted:
            return None
        if self._plan.fixed_lag:
            self.ready = deque(sorted(self.ready))  # an order that does not depend on which was ready first
        taken = []
        while wanted > 0:
            slot, start = self.ready[0], self._next_column
            if start == 0:
                self._slots.take(slot)
            stop = min(start + wanted, num_envs)
            taken.append(Columns(slot, start, stop, is_last=stop == num_envs))
            wanted -= stop - start
            self._next_column = stop % num_envs
            if stop == num_envs:
                self.ready.popleft()
        return taken

    def begin_dataset(self) -> None:
        """With a fixed lag: lets all splits collect the next dataset; weights are not to change until it is whole."""
        self._may_begin_dataset = True

    def release(self, columns: list[Columns]) -> None:
        """Frees the slots whose last column was trained on, after newer weights were published."""
        for part in columns:
            if part.is_last:
                self._free_slot(part.slot)

    def _free_slot(self, slot: int) -> None:
        if self._reader is not None:
            self._reader.settle(slot)
        self._slots.free(slot)
        self._free.append(slot)


WAIT_S = 0.1


class SlotExchange:
    """Moves slots between the rings and the ledger; safe to call from both of the learner's threads.

    One thread keeps the slots moving while the other one trains, so no split waits for a minibatch to end. Both work on
    the ledger under one lock, and whoever holds it is the one producer of the granting rings.
    """

    def __init__(
        self,
        ledger: SlotLedger,
        ready: Sequence[IndexRing],
        granted: Sequence[IndexRing],
        workers: Sequence[Waker],
        splits_per_worker: int,
        worker_deaths: WorkerDeaths,
    ) -> None:
        """Takes the rings from and to each rollout worker, and their wakers, by the worker's index."""
        self._ledger = ledger
        self._ready = ready
        self._granted = granted
        self._workers = workers
        self._splits_per_worker = splits_per_worker
        self._worker_deaths = worker_deaths
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def poll(self) -> None:
        """Takes in ready slots and grants free ones; settles deaths of workers."""
        with self._changed:
            departed = self._worker_deaths.pending_for_learner()
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
        """Takes the columns of a dataset, waiting for them at most `timeout_s`; None if there are too few.

        Raises:
            RuntimeError: the thread that serves rings has failed.
        """
        with self._changed:
            for wait_s in (timeout_s, 0.0):
                if self._failure is not None:
                    raise RuntimeError("the thread that exchanges slots failed") from self._failure
                columns = self._ledger.take_dataset(learner_version)
                if columns is not None or wait_s == 0.0:
                    break
                self._changed.wait(wait_s)
        if columns is None:
            self.poll()  # slots that were dropped as too old are free now
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
        return len(self._ledger.ready)

    @property
    def dropped_samples(self) -> int:
        """Samples dropped so far because they were too old, or their worker died."""
        return self._ledger.dropped_samples

    def _take_over(self, worker_idx: int) -> None:
        """Puts the rings of a dead worker in order; what it had handed over was taken in before.

        The other end of its granting ring is nobody's now, and the slots' words say what was in it.
        """
        self._granted[worker_idx].pop_all()
        first = worker_idx * self._splits_per_worker
        for _, slot in self._ledger.take_over(range(first, first + self._splits_per_worker)):
            self._granted[worker_idx].push(slot)
        self._worker_deaths.acknowledge_as_learner(worker_idx)
