"""The owner of each slot and the order of grants, in the learner.

Sync: all slots are granted together, equally to every split, once all of them are free. Async: a split that has handed
over its slot gets any free one, first come, first served, so a slow worker delays no other; collecting pauses while no
slot is free. A slot stays in use until its last column was trained on and newer weights were published. Fixed lag: as
in sync, but there are slots for two datasets, and those of the next are granted when the learner begins to train on a
complete one; nobody collects at that moment.

A second thread of the learner receives slots (`ThreadedSource.serve`), so that no split waits while the first one
trains.
"""

from __future__ import annotations

import abc
import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import SlotState, TrajectorySlots
from asyncrl.config.plan import ResourcePlan

if TYPE_CHECKING:
    from asyncrl.learner.dataset import DeviceSlots

WAIT_S = 0.1


@dataclass(frozen=True)
class Columns:
    """Columns `start` to `stop` of a slot, and whether they are its last."""

    slot: int
    start: int
    stop: int
    is_last: bool


class SlotLedger:
    """The order of ready slots and free slots. Used by the learner process alone, under its lock.

    Attributes:
        ready: slots that wait to be trained on, in the order in which they became ready.
        dropped_samples: valid samples dropped so far because they were too old, or their worker died.
    """

    def __init__(self, slots: TrajectorySlots, plan: ResourcePlan, copies: DeviceSlots | None = None) -> None:
        """Takes ownership of the slots, all of which are free; ready ones are copied to `copies`."""
        self._slots = slots
        self._copies = copies
        self._plan = plan
        self._free: deque[int] = deque(range(slots.num_slots))
        self._waiting_splits: deque[int] = deque(plan.first_splits)
        self.ready: deque[int] = deque()
        self.dropped_samples = 0
        self._next_column = 0
        self._dropped: list[tuple[int, int]] = []  # sync: split and slot of each dropped slot, to be filled again
        self._may_begin_dataset = True
        self._columns_per_dataset, self._num_splits = plan.columns_per_dataset, plan.num_splits

    def add_ready(self, slot: int) -> None:
        """Adds a slot that a split has handed over."""
        if self._copies is not None:
            self._copies.start_copy(slot)
        self.ready.append(slot)
        self._waiting_splits.append(self._slots.owner[slot])

    def reclaim(self, splits: Container[int]) -> list[tuple[int, int]]:
        """Reassigns the slots of a worker that died, by their state in shared memory alone.

        A finished slot becomes ready, whether or not its number has arrived. One that was being filled is emptied and
        granted to the same split again, so that a dataset in sync mode stays complete. `splits` are all splits of the
        worker; returns (split, slot) of each grant.
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
        """Grants the slots that may be granted now; returns (split, slot) of each grant."""
        plan, free = self._plan, self._free
        if self._dropped:
            again, self._dropped = self._dropped, []
            for split_idx, slot in again:
                self._slots.grant(slot, split_idx)
            return again
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
        """Takes the columns of one dataset in the order in which their slots became ready; None if there are too few.

        First it drops slots with a sample that is more than `max_policy_lag` versions older than `learner_version`,
        which will train on them. In sync mode, where that follows weights that were taken over, their splits fill them
        again, so that the dataset becomes complete.
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
            split_idx = self._slots.owner[slot]
            self.release([Columns(slot, first_column, self._slots.num_envs, is_last=True)])
            if not self._plan.async_rl:
                self._free.remove(slot)
                self._dropped.append((split_idx, slot))
        num_envs, wanted = self._slots.num_envs, self._columns_per_dataset
        if len(self.ready) * num_envs - self._next_column < wanted:
            return None
        if self._plan.fixed_lag:
            # An order that does not depend on which was ready first.
            slots = sorted(self.ready)
            self.ready.clear()
            self.ready.extend(slots)
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
        """With a fixed lag: grants the next dataset; weights must not change until it is complete."""
        self._may_begin_dataset = True

    def release(self, columns: list[Columns]) -> None:
        """Frees the slots whose last column is among these."""
        for part in columns:
            if part.is_last:
                if self._copies is not None:
                    self._copies.wait_for_copy(part.slot)
                self._slots.free(part.slot)
                self._free.append(part.slot)


class ThreadedSource(abc.ABC):
    """Provides datasets. Both threads may call it; they hold one lock while they use its state.

    A subclass holds `_changed` while it reads or writes its state, and notifies it when a dataset may be complete.
    """

    def __init__(self, take: Callable[[int], list[Columns] | None]) -> None:
        """`take` returns the next dataset, for a policy version of the learner; None if it is not complete."""
        self._take = take  # called under the lock
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @abc.abstractmethod
    def poll(self) -> None:
        """Receives complete slots, and lets workers fill those that are free."""

    def serve(self, waker: Waker, control: RunControl) -> None:
        """The main loop of the second thread: polls until the run has ended."""
        try:
            while not control.ended:
                self.poll()
                waker.wait(WAIT_S)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def take_dataset(self, learner_version: int, timeout_s: float) -> list[Columns] | None:
        """Takes the next dataset, waiting for it at most `timeout_s`; None if it is not complete.

        Raises:
            RuntimeError: the second thread has failed.
        """
        with self._changed:
            for wait_s in (timeout_s, 0.0):
                if self._failure is not None:
                    raise RuntimeError("the thread that receives slots failed") from self._failure
                taken = self._take(learner_version)
                if taken is not None or wait_s == 0.0:
                    break
                self._changed.wait(wait_s)
        if taken is None:
            self.poll()  # slots that were dropped because of their age are free now
        return taken


class SlotExchange(ThreadedSource):
    """Moves slots between the rings and the ledger. Who holds the lock is the only producer of the granting rings.

    Attributes:
        ready: slots that wait to be trained on.
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
        """Takes the rings from and to each rollout worker, and its waker, by the worker's index."""
        super().__init__(ledger.take_dataset)
        self._ledger = ledger
        self.ready = ledger.ready
        self._ready = ready
        self._granted = granted
        self._workers = workers
        self._splits_per_worker = splits_per_worker
        self._worker_deaths = worker_deaths

    def poll(self) -> None:
        """Receives ready slots and grants free ones; reassigns the slots of workers that died."""
        with self._changed:
            departed = self._worker_deaths.pending_for_learner()
            slots = [slot for ring in self._ready for slot in ring.pop_all()]
            for slot in slots:
                self._ledger.add_ready(slot)
            for worker_idx in departed:
                # Nobody reads the other end of its granting ring now; the state of the slots says what was in it.
                self._granted[worker_idx].pop_all()
                first = worker_idx * self._splits_per_worker
                for _, slot in self._ledger.reclaim(range(first, first + self._splits_per_worker)):
                    self._granted[worker_idx].push(slot)
                self._worker_deaths.acknowledge_as_learner(worker_idx)
            woken = set()
            for split_idx, slot in self._ledger.grant():
                worker_idx = split_idx // self._splits_per_worker
                self._granted[worker_idx].push(slot)
                woken.add(worker_idx)
            if slots or departed:
                self._changed.notify_all()
        for worker_idx in woken:
            self._workers[worker_idx].wake()

    def release(self, columns: list[Columns]) -> None:
        """Frees the slots that were trained on, after newer weights were published, and grants them again."""
        with self._changed:
            self._ledger.release(columns)
        self.poll()

    def begin_dataset(self) -> None:
        with self._changed:
            self._ledger.begin_dataset()
        self.poll()

    @property
    def dropped_samples(self) -> int:
        return self._ledger.dropped_samples
