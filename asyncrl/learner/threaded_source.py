"""Receives slots in a second thread of the learner, so that no split waits while the first one trains."""

from __future__ import annotations

import abc
import threading
from typing import Generic, TypeVar

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import Waker

WAIT_S = 0.1
T = TypeVar("T")


class ThreadedSource(abc.ABC, Generic[T]):
    """Provides datasets. Both threads may call it; they hold one lock while they use its state.

    A subclass holds `_changed` while it reads or writes its state, and notifies it when a dataset may be complete.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    @abc.abstractmethod
    def poll(self) -> None:
        """Receives complete slots, and lets workers fill those that are free."""

    @abc.abstractmethod
    def _take(self, learner_version: int) -> T | None:
        """The next dataset if it is complete. The caller holds the lock."""

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

    def take_dataset(self, learner_version: int, timeout_s: float) -> T | None:
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
