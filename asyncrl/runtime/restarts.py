"""How often and how soon a process is started again, and when one counts as hung. All times are seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
_LONGEST_LOOK_S = 1.0

Event = TypeVar("Event")


class RecentEvents(Generic[Event]):
    """What happened within a window of time."""

    def __init__(self, window_s: float) -> None:
        """Nothing has."""
        self._window_s = window_s
        self._events: deque[tuple[float, Event]] = deque()

    def __len__(self) -> int:
        """How many there were as of the last look."""
        return len(self._events)

    def add(self, event: Event, now: float) -> None:
        """Adds one that happened now."""
        self._events.append((now, event))

    def look(self, now: float) -> list[Event]:
        """Forgets what is too long ago; returns the others, the oldest first."""
        while self._events and now - self._events[0][0] > self._window_s:
            self._events.popleft()
        return [event for _, event in self._events]


class RestartBudget:
    """Allows so many restarts of all processes together within a window of time.

    A process that keeps dying is started again later and later: after 0.1 s, 0.2 s, 0.4 s, at most 10 s.
    """

    def __init__(self, most: int, window_s: float) -> None:
        """Allows `most` restarts within any `window_s` seconds."""
        self._most = most
        self._restarts: RecentEvents[str] = RecentEvents(window_s)

    @property
    def num_taken(self) -> int:
        """Restarts taken within the window, as of the last `take`."""
        return len(self._restarts)

    def take(self, child: str, now: float) -> float | None:
        """Takes one restart.

        Returns:
            Seconds to wait before it, or None if none is left.
        """
        recent = self._restarts.look(now)
        if len(recent) >= self._most:
            return None
        before = recent.count(child)
        self._restarts.add(child, now)
        return float(min(FIRST_DELAY_S * 2.0 ** min(before, 32), LONGEST_DELAY_S))


class HangDetector:
    """Finds processes that make no progress, from numbers that each of them moves while it works or waits.

    Time counts while somebody looks: if all of a run was stopped for an hour (Ctrl-Z, a sleeping laptop) the one look
    after it adds a second.
    """

    def __init__(self, timeout_s: float, start_timeout_s: float) -> None:
        """A process may stand still for `timeout_s`, before its first progress for `start_timeout_s`."""
        self._timeout_s = timeout_s
        self._start_timeout_s = max(start_timeout_s, timeout_s)
        self._looked_at: float | None = None
        self._seen: dict[str, int] = {}
        self._still_s: dict[str, float] = {}
        self._has_begun: dict[str, bool] = {}

    def note_start(self, name: str, number: int) -> None:
        """Notes that a process was started, and its number then: it may have moved on before anybody looks."""
        self._seen[name], self._still_s[name], self._has_begun[name] = number, 0.0, False

    def look(self, progress: Mapping[str, int], now: float) -> list[str]:
        """Compares with the last look.

        Args:
            progress: the number of each process that runs, all of which were noted when they were started.
            now: time (`time.monotonic`).

        Returns:
            Those that are hung.
        """
        passed_s = 0.0 if self._looked_at is None else min(now - self._looked_at, _LONGEST_LOOK_S)
        self._looked_at = now
        hung = []
        for name, number in progress.items():
            if number != self._seen[name]:
                self._still_s[name], self._has_begun[name] = 0.0, True
            else:
                self._still_s[name] += passed_s
            self._seen[name] = number
            if self._still_s[name] > (self._timeout_s if self._has_begun[name] else self._start_timeout_s):
                hung.append(name)
        return hung
