"""Requests for actions: which split waits for an action on which row of which slot.

The worker writes slot and row, then the request's number; the server writes the action into the slot, then the
answer's number. A request is open exactly while the answer's number is smaller, so after any death both sides can
tell from these words alone what is open, and no request is answered twice.
"""

from __future__ import annotations

from asyncrl.buffers.arena import Arena


class RequestTable:
    """One request at a time for each split."""

    def __init__(self, arena: Arena) -> None:
        """Views the words of all splits."""
        self._request_seq = arena.words("splits.request_seq")
        self._response_seq = arena.words("splits.response_seq")
        self._slot = arena.words("splits.request_slot")
        self._row = arena.words("splits.request_row")

    def is_open(self, split_idx: int) -> bool:
        """Whether the split waits for an answer."""
        return bool(self._response_seq[split_idx] < self._request_seq[split_idx])

    def ask(self, split_idx: int, slot: int, row: int) -> None:
        """Asks for actions on a row whose observations are written (worker)."""
        if self.is_open(split_idx):
            raise RuntimeError(f"split {split_idx} asked again before it was answered")
        self._slot[split_idx] = slot
        self._row[split_idx] = row
        self._request_seq[split_idx] += 1

    def open_request(self, split_idx: int) -> tuple[int, int] | None:
        """Slot and row of the split's open request, None if there is none (server)."""
        if not self.is_open(split_idx):
            return None
        return int(self._slot[split_idx]), int(self._row[split_idx])

    def close(self, split_idx: int) -> None:
        """Ends the request of a split whose worker died, if one is open (server)."""
        self._response_seq[split_idx] = self._request_seq[split_idx]

    def answer(self, split_idx: int) -> None:
        """Says that the actions are written (server)."""
        self._response_seq[split_idx] = self._request_seq[split_idx]
