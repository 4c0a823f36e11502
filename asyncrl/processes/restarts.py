"""How often and how soon a process is restarted, and when a process hangs. All times are seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
_LONGEST_INTERVAL_S = 1.0

Event = TypeVar("Event")


class RecentEvents(Generic[Event]):
    """The events within a window of time."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._events: deque[tuple[float, Event]] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event, now: float) -> None:
        self._events.append((now, event))

    def within_window(self, now: float) -> list[Event]:
        """Removes events before the window; returns the others, the oldest first."""
        while self._events and now - self._events[0][0] > self._window_s:
            self._events.popleft()
        return [event for _, event in self._events]


class RestartBudget:
    """Allows `most` restarts of all processes together within any `window_s` seconds.

    The delay doubles with each restart of a process: 0.1 s, 0.2 s, 0.4 s, at most 10 s.
    """

    def __init__(self, most: int, window_s: float) -> None:
        self._most = most
        self._restarts: RecentEvents[str] = RecentEvents(window_s)

    @property
    def num_taken(self) -> int:
        """Restarts within the window, at the last `take`."""
        return len(self._restarts)

    def take(self, child: str, now: float) -> float | None:
        """Takes one restart; returns the seconds to wait before it, None if no restart is left."""
        recent = self._restarts.within_window(now)
        if len(recent) >= self._most:
            return None
        before = recent.count(child)
        self._restarts.add(child, now)
        return float(min(FIRST_DELAY_S * 2.0 ** min(before, 32), LONGEST_DELAY_S))


class HangDetector:
    """Finds processes whose progress number, which changes while they work or wait, stays the same for too long.

    The time between two checks counts as one second at most: if the whole run was stopped for an hour (Ctrl-Z, a
    sleeping laptop), no process counts as hung.
    """

    def __init__(self, timeout_s: float, start_timeout_s: float) -> None:
        """Allows `timeout_s` without progress; `start_timeout_s` while a process begins."""
        self._timeout_s = timeout_s
        self._start_timeout_s = max(start_timeout_s, timeout_s)
        self._checked_at: float | None = None
        self._seen: dict[str, int] = {}
        self._still_s: dict[str, float] = {}

    def record_start(self, name: str, number: int) -> None:
        """Notes the start of a process and its progress number then, which may change before the first check."""
        self._seen[name], self._still_s[name] = number, 0.0

    def find_hung(self, progress: Mapping[str, int], begun: Collection[str], now: float) -> dict[str, float]:
        """Returns the processes that hang, and the time that each of them had.

        Args:
            progress: the number of each running process; each start was noted.
            begun: the processes that are no longer beginning.
            now: time (`time.monotonic`).
        """
        passed_s = 0.0 if self._checked_at is None else min(now - self._checked_at, _LONGEST_INTERVAL_S)
        self._checked_at = now
        hung = {}
        for name, number in progress.items():
            if number != self._seen[name]:
                self._still_s[name] = 0.0
            else:
                self._still_s[name] += passed_s
            self._seen[name] = number
            limit_s = self._timeout_s if name in begun else self._start_timeout_s
            if self._still_s[name] > limit_s:
                hung[name] = limit_s
        return hung
