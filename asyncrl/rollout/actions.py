"""The two places that actions come from, see `asyncrl.rollout.split.ActionSource`."""

from __future__ import annotations

from asyncrl.buffers.requests import RequestTable
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.wake import Waker
from asyncrl.models.acting import ActingPolicy


class LocalActions:
    """This process's own copy of the policy answers at once, always with the newest weights."""

    def __init__(self, policy: ActingPolicy) -> None:
        """Takes the policy that answers."""
        self._policy = policy

    def request(self, split_idx: int, slot: int, row: int) -> None:
        """Answers the request of any split on the spot."""
        self._policy.refresh()
        self._policy.answer([(slot, row)])

    def is_answered(self, split_idx: int) -> bool:
        """Always: the answer came with the request."""
        return True


class RemoteActions:
    """An inference worker answers: the request goes into the table, the news of it through a ring."""

    def __init__(self, table: RequestTable, ring: IndexRing, server: Waker) -> None:
        """Takes the ring to the inference worker that serves this worker, and its waker."""
        self._table = table
        self._ring = ring
        self._server = server

    def request(self, split_idx: int, slot: int, row: int) -> None:
        """Sends the request."""
        self._table.ask(split_idx, slot, row)
        self._ring.push(split_idx)
        self._server.wake()

    def is_answered(self, split_idx: int) -> bool:
        """Whether the inference worker has written the actions."""
        return not self._table.is_open(split_idx)
