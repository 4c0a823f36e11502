"""Ranks that are threads of one process, so that what several learners make together is the same each time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from asyncrl.learner.ranks import Ranks

_Result = TypeVar("_Result")
_LIMIT_S = 30.0


class ThreadRanks(Ranks):
    """One of several; all have the same `meeting`."""

    def __init__(self, rank: int, meeting: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.num_ranks = rank, len(meeting)
        self._meeting, self._barrier = meeting, barrier

    def _exchange(self, own: Any) -> list[Any]:
        self._meeting[self.rank] = own
        self._barrier.wait(_LIMIT_S)
        everyone = list(self._meeting)
        self._barrier.wait(_LIMIT_S)
        return everyone

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(torch.stack(self._exchange(tensor.clone())).sum(0))

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        return [list(each) for each in self._exchange(numbers)]

    def take_from_first(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self._exchange(tensor.clone())[0])


def together(
    num_ranks: int, work: Callable[[ThreadRanks], _Result], kind: type[ThreadRanks] = ThreadRanks
) -> list[_Result]:
    """What `work` returns in each of the ranks, which run at the same time."""
    meeting, barrier = [None] * num_ranks, threading.Barrier(num_ranks)

    def run(rank: int) -> _Result:
        try:
            return work(kind(rank, meeting, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as threads:
        return list(threads.map(run, range(num_ranks)))
