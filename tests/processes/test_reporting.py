"""Reports are dropped before anyone waits, and those that were sent in time are not lost at the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from signal_slot.signal_slot import EventLoop

from asyncrl.observers.reports import RolloutReport
from asyncrl.processes.reporting import ReportChannel

pytestmark = pytest.mark.usefixtures("leaves_nothing")


class HeldChannel:
    """A channel whose receiving thread does nothing until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        take = EventLoop.process_events

        def held(loop: EventLoop) -> None:
            if not self.released.is_set():
                self.released.wait()
                return
            take(loop)

        monkeypatch.setattr(EventLoop, "process_events", held)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.channel = ReportChannel("held", self.inbox)

    def send(self, count: int) -> None:
        for number in range(count):
            self.channel.sender.send(RolloutReport(number, 1.0, 1, ()))

    def received(self) -> list[int]:
        """Ends the channel and returns the numbers of the reports that came."""
        self.channel.begin_closing()
        self.released.set()
        self.channel.close(timeout_s=20.0)
        return [self.inbox.get().worker_idx for _ in range(self.inbox.qsize())]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, leaves_nothing: None) -> Iterator[HeldChannel]:
    held = HeldChannel(monkeypatch)
    yield held
    held.received()


def test_a_sender_whose_queue_is_full_drops_reports_and_goes_on(held: HeldChannel) -> None:
    held.send(20_000)
    received = held.received()
    assert received == list(range(len(received)))
    assert 100 < len(received) < 20_000
