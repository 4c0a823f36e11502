"""Starts the children of a run, notices what becomes of each, starts them again, and ends them all.

The runner waits on the children's sentinels and on the pipes through which they speak; it never waits on a queue.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from asyncrl.monitoring.reports import Report
from asyncrl.runtime.processes import ChildFailure, ChildProcess, ChildResult, start_loading_modules
from asyncrl.runtime.reporting import ReportChannel

_CLOSING_S = 1.0


class Supervisor:
    """All children of a run. Owns their processes, pipes and report channels."""

    def __init__(self, context: BaseContext, log_path: Callable[[str], Path]) -> None:
        """Starts nothing; `log_path` gives the log file of a child."""
        self._context = context
        self._log_path = log_path
        self._inbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._running: dict[str, ChildProcess] = {}
        self._ended: dict[str, ChildProcess] = {}
        self._channels: dict[str, ReportChannel] = {}
        self._closing: list[ReportChannel] = []
        self._num_started = 0

    def start(self, name: str, target: Callable[..., Any], *args: Any) -> None:
        """Starts `target(*args, reports)` in a child process, where `reports` sends reports to this one.

        A name may be used again once its process was buried.

        Raises:
            RunFailed: no process could be started.
        """
        self._num_started += 1
        channel = ReportChannel(f"{name} #{self._num_started}", self._inbox)
        self._channels[name] = channel
        self._running[name] = ChildProcess(self._context, name, self._log_path(name), target, (*args, channel.sender))

    @property
    def running(self) -> list[str]:
        """Names of the children whose outcome is not known."""
        return list(self._running)

    def wait(self, timeout_s: float) -> list[ChildResult | ChildFailure]:
        """Waits until something became of a child, at most `timeout_s`; each child has one outcome."""
        watched: list[Any] = []
        for child in self._running.values():
            watched.extend((child.sentinel, child.messages))
        if watched:
            connection.wait(watched, timeout_s)
        start_loading_modules(self._context)
        outcomes = []
        for name, child in list(self._running.items()):
            outcome = child.take_outcome()
            if outcome is not None:
                outcomes.append(outcome)
                self._ended[name] = self._running.pop(name)
        return outcomes

    def bury(self, name: str) -> bool:
        """Makes sure that the process of a child whose outcome is known has ended, and gives back what it had.

        Returns:
            Whether it has: a process that the kernel does not let go of has not.
        """
        child = self._ended.pop(name)
        child.end(timeout_s=1.0)
        channel = self._channels.pop(name)
        channel.begin_closing()
        self._closing = [channel, *(other for other in self._closing if not other.is_closed)]
        return child.has_ended

    def kill_hung(self, name: str, reason: str) -> None:
        """Kills a child, its stacks in its log; its outcome says that it `reason`."""
        self._running[name].kill(reason)

    def wait_for(self, name: str, timeout_s: float) -> ChildResult | ChildFailure | None:
        """Waits for the outcome of one child, at most `timeout_s`; outcomes of others are passed over."""
        deadline = time.monotonic() + timeout_s
        while name in self._running and (left_s := deadline - time.monotonic()) > 0.0:
            for outcome in self.wait(min(left_s, 0.2)):
                if outcome.child == name:
                    return outcome
        return None

    def take_reports(self) -> list[Report]:
        """The reports that came since the last call."""
        reports = []
        while not self._inbox.empty():
            reports.append(self._inbox.get())
        return reports

    def end(self, timeout_s: float) -> list[str]:
        """Waits for all children to end and kills those that have not after `timeout_s`.

        Returns:
            Names of the children that were killed.
        """
        deadline = time.monotonic() + timeout_s
        killed = []
        for child in [*self._ended.values(), *self._running.values()]:
            if not child.end(max(0.0, deadline - time.monotonic())):
                killed.append(child.name)
        channels = [*self._closing, *self._channels.values()]
        for channel in channels:
            channel.begin_closing()
        deadline = time.monotonic() + _CLOSING_S
        for channel in channels:
            channel.close(max(0.0, deadline - time.monotonic()))
        self._running, self._ended, self._channels, self._closing = {}, {}, {}, []
        return killed
