"""Environment steps of all workers together: what schedules and the end of the run follow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl

_SAVED = "env_steps_of_worker_{}"


def saved_worker_steps(state: Mapping[str, Any]) -> tuple[int, ...]:
    """Environment steps of each worker as a checkpoint's state has them; none of a run of the other backend."""
    names = itertools.takewhile(state.__contains__, map(_SAVED.format, itertools.count()))
    return tuple(int(state[name]) for name in names)


class GlobalClock:
    """Adds up the words in which each worker counts its own steps."""

    def __init__(
        self,
        arena: Arena,
        control: RunControl,
        num_workers: int,
        first_env_steps: int,
        most_env_steps: int,
        first_worker_steps: Sequence[int] = (),
    ) -> None:
        """Counts on from `first_env_steps`, and from `first_worker_steps`; the run is to have `most_env_steps`."""
        self._resting = arena.words("shared.resting")
        self._settled = arena.words("shared.settled")
        self._control = control
        self._num_workers = num_workers
        self._first = first_env_steps
        self._first_of_workers = first_worker_steps
        self._most = most_env_steps

    @property
    def env_steps(self) -> int:
        """Environment steps of the run."""
        return self._first + sum(self._collected)

    @property
    def saved(self) -> dict[str, int]:
        """What `saved_worker_steps` reads; workers that the run had before and has no more keep theirs."""
        steps = itertools.zip_longest(self._first_of_workers, self._collected, fillvalue=0)
        return {_SAVED.format(worker): before + now for worker, (before, now) in enumerate(steps)}

    @property
    def is_over(self) -> bool:
        """Whether all steps were made, or the run was asked to stop."""
        return self._control.stop_requested or self.env_steps >= self._most

    @property
    def _collected(self) -> list[int]:
        return [self._control.collected_steps(worker) for worker in range(self._num_workers)]

    def unsettled_steps(self, worker_idx: int) -> int:
        """Environment steps of a worker that were neither trained on nor counted as dropped (that worker)."""
        return self._control.collected_steps(worker_idx) - int(self._settled[worker_idx])

    def settle_steps(self, worker_idx: int) -> None:
        """Notes that all steps of a worker so far were trained on or counted as dropped (that worker)."""
        self._settled[worker_idx] = self._control.collected_steps(worker_idx)

    def rest(self, worker_idx: int) -> None:
        """Says that a worker has nothing in hand any more (that worker)."""
        self._resting[worker_idx] = 1

    @property
    def do_all_rest(self) -> bool:
        """Whether no worker has anything in hand."""
        return all(self._resting)
