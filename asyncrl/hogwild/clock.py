"""Environment steps of all workers together: what schedules and the end of the run follow."""

from __future__ import annotations

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl


class GlobalClock:
    """Adds up the words in which each worker counts its own steps."""

    def __init__(
        self, arena: Arena, control: RunControl, num_workers: int, first_env_steps: int, most_env_steps: int
    ) -> None:
        """Counts on from `first_env_steps`; the run is to have `most_env_steps`."""
        self._resting = arena.words("shared.resting")
        self._control = control
        self._num_workers = num_workers
        self._first = first_env_steps
        self._most = most_env_steps

    @property
    def env_steps(self) -> int:
        """Environment steps of the run."""
        return self._first + sum(self._control.collected_steps(worker) for worker in range(self._num_workers))

    @property
    def is_over(self) -> bool:
        """Whether all steps were made, or the run was asked to stop."""
        return self._control.stop_requested or self.env_steps >= self._most

    def rest(self, worker_idx: int) -> None:
        """Says that a worker has nothing in hand any more (that worker)."""
        self._resting[worker_idx] = 1

    @property
    def do_all_rest(self) -> bool:
        """Whether no worker has anything in hand."""
        return all(self._resting)
