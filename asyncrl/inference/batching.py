"""When to run a forward pass: at once for nearly all that can ask, otherwise after a short wait for company.

While one split of a worker waits, another steps, so about one request from each worker is open at a time. A batch of
that size is as large as it will get soon. A smaller one waits a little, because a pass over two splits costs hardly
more than a pass over one, but never longer than `max_wait_s`, because a worker whose splits all wait does nothing.
"""

from __future__ import annotations

from collections.abc import Container


class RequestBatcher:
    """Collects requests in the order of their arrival. Times are seconds of one monotonic clock."""

    def __init__(self, full_batch: int, max_wait_s: float) -> None:
        """Sets how many requests are worth running at once, and how long fewer may wait."""
        self._full_batch = full_batch
        self._max_wait_s = max_wait_s
        self._splits: dict[int, None] = {}  # in the order of their arrival
        self._oldest: float | None = None

    def add(self, splits: list[int], now: float) -> None:
        """Notes that these splits ask; again is no more than once."""
        if splits and self._oldest is None:
            self._oldest = now
        self._splits.update(dict.fromkeys(splits))

    def drop(self, splits: Container[int]) -> None:
        """Forgets these splits: nobody waits for their answers any more."""
        self._splits = {split_idx: None for split_idx in self._splits if split_idx not in splits}
        if not self._splits:
            self._oldest = None

    def wait_s(self, now: float) -> float | None:
        """Seconds until the batch should run: 0 if it should run at once, None if nothing is there."""
        if self._oldest is None:
            return None
        if len(self._splits) >= self._full_batch:
            return 0.0
        return max(0.0, self._oldest + self._max_wait_s - now)

    def take(self) -> list[int]:
        """Takes the whole batch."""
        splits, self._splits, self._oldest = list(self._splits), {}, None
        return splits
