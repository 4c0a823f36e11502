"""What every Hogwild worker has, whatever it learns from, and how it ends."""

from __future__ import annotations

import abc
from dataclasses import dataclass

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.hogwild.clock import GlobalClock
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.rollout.env_group import EnvironmentGroup
from asyncrl.rollout.worker import WAIT_S, RolloutWorkerBase


@dataclass(frozen=True)
class WorkerParts:
    """What every worker is made of.

    Attributes:
        worker_idx: its number.
        control: the run's words.
        clock: environment steps of all workers.
        arena: the memory of its own, which goes with it.
        phases: its time goes here.
    """

    worker_idx: int
    control: RunControl
    clock: GlobalClock
    arena: Arena
    phases: PhaseTimer


class HogwildWorker(RolloutWorkerBase, abc.ABC):
    """Collects and learns in turn, until all workers together have made the steps of the run."""

    def __init__(self, parts: WorkerParts, group: EnvironmentGroup) -> None:
        """Takes ownership of the environments and of the memory."""
        super().__init__(parts.worker_idx, [group], parts.control, parts.phases)
        self._clock = parts.clock
        self._arena = parts.arena

    def poll(self) -> float:
        """Works once, or says that it has nothing in hand any more.

        Returns:
            Seconds to wait, unless woken, before polling again.
        """
        if self._clock.is_over:
            self._clock.rest(self.worker_idx)
            return WAIT_S
        return self._work()

    def close(self) -> None:
        """Closes the environments and gives the memory back."""
        super().close()
        self._arena.close()

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        return Phase.WAIT_UPDATES

    @abc.abstractmethod
    def _work(self) -> float:
        """Does a little; returns for how long to wait before the next time."""
