"""When a run ends before it has trained on all of its environment steps."""

from __future__ import annotations

import time

from asyncrl.buffers.control import RunControl


class StopCondition:
    """Whether the run was asked to stop, or has used up its time. The time counts from here."""

    def __init__(self, control: RunControl, limit_s: float | None, elapsed_s: float = 0.0) -> None:
        """Starts the clock.

        Args:
            control: the run's words.
            limit_s: seconds that the run may take; None for no limit.
            elapsed_s: seconds that it took before.
        """
        self._control = control
        self._limit_s = limit_s
        self._started_at = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run has taken."""
        return time.monotonic() - self._started_at

    @property
    def is_met(self) -> bool:
        """Whether the run is to end as soon as its update allows."""
        return self._control.stop_requested or (self._limit_s is not None and self.elapsed_s >= self._limit_s)
