"""Chooses the number of threads of an update by measurement, repeatedly, because the load of the machine changes.

Threads synchronize at the end of every operation. On free cores two are almost twice as fast as one. If another program
uses one of the cores, every operation waits for it, and two threads are ten times slower than one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

RETRY_S = 15.0
_UPDATES_OF_A_TRIAL = 4
_BETTER_BY = 0.95
_FAR_SLOWER = 3.0  # than the fastest: one update shows it, whether or not it trains the policy, too


class ThreadChoice:
    """Uses the number of threads whose updates were fastest in the last trial: 1, 2, 4 and so on up to `most`."""

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        use: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        """Begins with a trial of each number; `use` sets the number of threads of this process."""
        self._candidates = [count for count in (2**power for power in range(most.bit_length())) if count < most]
        self._candidates.append(most)
        self._clock, self._use = clock, use
        self._chosen = most
        self._to_try = list(self._candidates) if most > 1 else []
        self._fastest: dict[int, float] = {}
        self._updates = 0
        self._tried_at = clock()

    @property
    def num_threads(self) -> int:
        """Threads of the next update."""
        return self._to_try[0] if self._to_try else self._chosen

    @property
    def is_trying(self) -> bool:
        """Whether the next update belongs to a trial; it should be made alone, as it may take a second."""
        return bool(self._to_try)

    @contextlib.contextmanager
    def updating(self, num_updates: int) -> Iterator[None]:
        """Wraps a call that makes `num_updates` updates."""
        count, started = self.num_threads, self._clock()
        self._use(count)
        yield
        now = self._clock()
        if self._to_try:
            # The fastest of a candidate's calls counts, because disturbances only make calls slower.
            seconds = (now - started) / num_updates
            self._fastest[count] = min(seconds, self._fastest.get(count, seconds))
            self._updates += num_updates
            if self._updates >= _UPDATES_OF_A_TRIAL or seconds > _FAR_SLOWER * min(self._fastest.values()):
                self._updates = 0
                self._to_try.pop(0)
            if not self._to_try:
                self._tried_at = now
                best = min(self._fastest, key=self._fastest.__getitem__)
                if self._fastest[best] < _BETTER_BY * self._fastest[self._chosen]:
                    self._chosen = best
        elif len(self._candidates) > 1 and now - self._tried_at >= RETRY_S:
            self._to_try, self._fastest = list(self._candidates), {}
