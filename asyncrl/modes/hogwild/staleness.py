"""How many updates others make between a worker's pull and its push, and a bound on it.

    pull       the worker notes how many updates others have made, then reads the shared parameters
    compute    a gradient at what it has read
    push       the staleness is the number of updates that others have made since the pull; then the worker steps

Without a bound nobody waits. With one, pulls and pushes hold a lock, so a pull sees each update of others as a whole or
not at all. A worker that is over the bound keeps the lock, pulls and computes again, and pushes with a staleness of 0.
A worker recomputes an update at most once, and waits only for the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.shared_tensors import SharedTensor
from asyncrl.observers.reports import Staleness

_FIRST_WAIT_S, _LONGEST_WAIT_S = 2e-5, 2e-3

Result = TypeVar("Result")


class PushLock:
    """One lock for all processes of an arena: a record lock on a file, which the kernel frees if the holder dies.

    Attributes:
        is_held: whether this object holds it. Objects of one process do not exclude one another.
    """

    def __init__(self, arena: Arena, note_waiting: Callable[[], None]) -> None:
        """Calls `note_waiting` again and again while another process holds the lock."""
        self._arena = arena
        self._note_waiting = note_waiting
        self.is_held = False

    def acquire(self) -> bool:
        """Returns whether another process held it."""
        wait_s, has_waited = _FIRST_WAIT_S, False
        while not self.is_held:
            try:
                fcntl.lockf(self._arena.lock_fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                self.is_held = True
            except OSError as error:
                if not isinstance(error, (BlockingIOError, PermissionError)):
                    raise
                self._note_waiting()
                has_waited = True
                time.sleep(wait_s)
                wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
        return has_waited

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            fcntl.lockf(self._arena.lock_fileno(), fcntl.LOCK_UN, 1)


class _TooStaleError(Exception):
    """The gradient may not be pushed."""


class StalenessMeter:
    """Measures the staleness of one worker's updates, and keeps it within a bound if there is one."""

    def __init__(
        self, trained: SharedTensor, owner: int, bound: int | None = None, lock: PushLock | None = None
    ) -> None:
        """Starts without a pull.

        Args:
            trained: the tensor whose steps count as updates.
            owner: number of this process among those that step it.
            bound: largest staleness; None for no bound.
            lock: with a bound, the lock of all that step.
        """
        if (bound is None) != (lock is None):
            raise ValueError("a bound needs a lock, and a lock a bound")
        self._steps = trained.steps
        self._owner = owner
        self._bound = bound
        self._lock = lock
        self._at_pull = 0
        self._is_admitted = False
        self._takes_lock_first = False
        self._counts: Counter[int] = Counter()
        self._num_recomputed = 0

    @property
    def num_updates(self) -> int:
        """Updates that all processes have made."""
        return int(sum(self._steps))

    @property
    def num_by_others(self) -> int:
        """Updates that other processes have made."""
        return self.num_updates - int(self._steps[self._owner])

    def record_pull(self, num_by_others: int) -> None:
        """Notes that the present weights have so many updates of others."""
        self._at_pull = num_by_others

    @contextlib.contextmanager
    def pulling(self) -> Iterator[None]:
        """Notes a pull; in its context the parameters are read."""
        had_lock = self._lock is None or self._lock.is_held
        if self._lock is not None:
            self._lock.acquire()
        try:
            self.record_pull(self.num_by_others)
            yield
        finally:
            if self._lock is not None and not had_lock:
                self._lock.release()

    def admit(self) -> None:
        """Called by the optimizers of an update before they change anything; the first call counts the update."""
        if self._is_admitted:
            return
        if self._lock is not None:
            self._lock.acquire()
        staleness = self.num_by_others - self._at_pull
        if self._bound is not None and staleness > self._bound:
            raise _TooStaleError
        self._counts[staleness] += 1
        self._is_admitted = True

    def update(self, compute: Callable[[], Result], pull: Callable[[], None]) -> Result:
        """Makes one update: `compute` computes and pushes it; if it is over the bound, again after `pull`.

        It is computed once, after `pull` with the lock, if it is over the bound before it is computed. Also if the last
        update was computed twice, or had to wait for the lock: others would push meanwhile again.
        """
        try:
            is_over = self._bound is not None and self.num_by_others - self._at_pull > self._bound
            if not is_over and not self._takes_lock_first:
                try:
                    return compute()
                except _TooStaleError:
                    self._num_recomputed += 1
                    self._takes_lock_first = True
            elif self._lock is not None:
                self._takes_lock_first = self._lock.acquire()
            pull()
            return compute()
        finally:
            self._is_admitted = False
            if self._lock is not None:
                self._lock.release()

    def take(self) -> Staleness:
        """Returns the updates since the last call."""
        found = Staleness(dict(self._counts), self._num_recomputed)
        self._counts, self._num_recomputed = Counter(), 0
        return found
