"""Reports from one child to the runner: typed records over signal-slot and a faster-fifo queue.

A process that is killed while it uses a faster-fifo queue can leave the queue's mutex locked for ever. Therefore each
queue belongs to one child and is read by one thread of the runner; if the child dies, queue and thread are abandoned
together and nobody else waits for them. `send` drops reports when the queue is full; nothing that must arrive travels
here (errors go through a pipe, counts through the arena).
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Any

from signal_slot.queue_utils import get_queue
from signal_slot.signal_slot import EventLoop, EventLoopObject, configure_logger, signal

from asyncrl.observers.reports import Report

QUEUE_BYTES = 500_000
_IDLE_WAKE_UP_S = 0.5

configure_logger(logging.getLogger(__name__))


class ReportSender(EventLoopObject):  # type: ignore[misc]
    """The child's end, which it gets with its start-up arguments."""

    @signal  # type: ignore[untyped-decorator]
    def reported(self) -> None: ...

    def send(self, report: Report) -> None:
        """Sends a report, or drops it if the runner is far behind."""
        self.emit("reported", report)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_sender, (self.object_id, self.send_signals_to, self.receiver_queues)


def _rebuild_sender(name: str, send_signals_to: dict[str, Any], receiver_queues: dict[str, Any]) -> ReportSender:
    sender = ReportSender(EventLoop(f"{name} loop", serial_mode=True), name)
    sender.send_signals_to = send_signals_to
    sender.receiver_queues = receiver_queues
    return sender


class _Receiver(EventLoopObject):  # type: ignore[misc]
    def __init__(self, loop: EventLoop, name: str, inbox: queue.SimpleQueue[Report]) -> None:
        super().__init__(loop, name)
        self.on_report = inbox.put


class ReportChannel:
    """The channel of one child: its sender, and the runner's thread that puts reports into the inbox."""

    def __init__(self, name: str, inbox: queue.SimpleQueue[Report]) -> None:
        """Makes queue and thread; `name` is unique among the channels of the run."""
        self._loop = EventLoop(f"{name} reports", serial_mode=True)
        self._loop.signal_queue = get_queue(buffer_size_bytes=QUEUE_BYTES)
        self._loop.default_timer.set_interval(_IDLE_WAKE_UP_S)
        receiver = _Receiver(self._loop, f"{name} receiver", inbox)
        self.sender = ReportSender(EventLoop(f"{name} loop", serial_mode=True), name)
        self.sender.connect("reported", receiver, "on_report")
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._receive, name=f"reports of {name}", daemon=True)
        self._thread.start()

    def begin_closing(self) -> None:
        """Asks the thread to take the reports that are left and end, within its idle wake-up time."""
        self._is_closing.set()

    @property
    def is_closed(self) -> bool:
        return not self._thread.is_alive()

    def close(self, timeout_s: float) -> None:
        """Closes the channel, and abandons its thread if that does not end in time."""
        self.begin_closing()
        self._thread.join(timeout_s)

    def _receive(self) -> None:
        while not self._is_closing.is_set():
            self._loop.process_events()
        self._loop.default_timer.set_interval(0.0)
        while not self._loop.signal_queue.empty():
            self._loop.process_events()
