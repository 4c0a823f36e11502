"""Where a role's time goes: every second is charged to a phase.

A charge takes 0.1 to 0.3 microseconds and is made a few times for each row of a split, so the timer is always on.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping


class Phase(enum.Enum):
    """What a role does. The value is the published name; the names of waiting phases begin with `wait`."""

    STEP = "step"
    FETCH = "fetch_weights"
    GATHER = "gather"
    FORWARD = "forward"
    COPY = "copy"
    TRAIN = "train"
    PUBLISH = "publish"
    SAVE = "save"
    EXCHANGE = "exchange_with_ranks"
    OTHER = "other"
    WAIT_ACTIONS = "wait_for_actions"
    WAIT_SLOTS = "wait_for_slots"
    WAIT_REQUESTS = "wait_for_requests"
    WAIT_SAMPLES = "wait_for_samples"
    WAIT_UPDATES = "wait_for_updates"
    WAIT_RANKS = "wait_for_ranks"


_WAITING = frozenset(phase for phase in Phase if phase.value.startswith("wait"))


class PhaseTimer:
    """Seconds by phase since the last `take`. Each role's process has one."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._charged_until = time.perf_counter()

    def charge(self, phase: Phase) -> None:
        """Charges the time since the last charge to `phase`."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._charged_until
        self._charged_until = now

    def move(self, seconds: float, source: Phase, target: Phase) -> None:
        """Charges seconds to `target` that `source` was charged with, because `target` was a part of it."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def restart(self) -> None:
        """Drops the time until now: the time before a role's loop is start-up."""
        self._seconds = {}
        self._charged_until = time.perf_counter()

    def take(self) -> dict[Phase, float]:
        """Returns the seconds by phase and sets them to zero."""
        seconds, self._seconds = self._seconds, {}
        return seconds


def busy_s(seconds: Mapping[Phase, float]) -> float:
    """Seconds of all phases in which the role worked."""
    return sum(spent for phase, spent in seconds.items() if phase not in _WAITING)
