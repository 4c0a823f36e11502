"""Roles whose words of the arena can be written only so many times, as if their process was killed then."""

from __future__ import annotations

from typing import Any

import numpy as np
from small_runs import CountingWaker

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import WorkerDeaths
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.config.plan import ResourcePlan
from asyncrl.inference.worker import InferenceWorker
from asyncrl.rollout.worker import RolloutWorker

VICTIM = 0


class Death(BaseException):
    """Ends a role in the middle of what it does."""


class Life:
    """Lasts for so many writes of words."""

    def __init__(self, num_writes: float) -> None:
        self.left = num_writes

    def spend(self) -> None:
        if self.left <= 0:
            raise Death
        self.left -= 1


class MortalWords:
    """Words of the arena whose writes take from a life."""

    def __init__(self, words: memoryview, life: Life) -> None:
        self._words = words
        self._life = life

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> int:
        return self._words[index]

    def __setitem__(self, index: int, number: int) -> None:
        self._life.spend()
        self._words[index] = number


class MortalArena:
    """The arena as one role sees it."""

    def __init__(self, arena: Arena, life: Life) -> None:
        self._arena = arena
        self._life = life

    def array(self, name: str) -> np.ndarray:
        return self._arena.array(name)

    def find_array(self, name: str) -> np.ndarray | None:
        return self._arena.find_array(name)

    def words(self, name: str) -> MortalWords:
        return MortalWords(self._arena.words(name), self._life)


class MortalRun:
    """Rollout workers and perhaps an inference worker, which take turns in one process; the victims die early."""

    def __init__(
        self, plan: ResourcePlan, arena: Arena, policy: Any, has_slots: bool, worker_life: float, server_life: float
    ) -> None:
        self.plan, self.arena, self.policy = plan, arena, policy
        self.has_server = plan.inference_mode == "central"
        self.worker_deaths = WorkerDeaths(arena, self.has_server, has_slots)
        self.has_worker_died = self.has_server_died = False
        self.workers: list[RolloutWorker | None] = [
            self.new_worker(worker_idx, Life(worker_life if worker_idx == VICTIM else np.inf))
            for worker_idx in range(plan.num_workers)
        ]
        self.server = self.new_server(Life(server_life)) if self.has_server else None

    def new_worker(self, worker_idx: int, life: Life) -> RolloutWorker:
        raise NotImplementedError

    def new_server(self, life: Life) -> InferenceWorker:
        arena: Any = MortalArena(self.arena, life)
        workers, splits = range(self.plan.num_workers), self.plan.worker_num_splits
        rings = {worker: IndexRing(arena, f"requests.{worker}") for worker in workers}
        wakers = dict.fromkeys(workers, CountingWaker())
        table = RequestTable(arena)
        return InferenceWorker(
            0, self.policy, self.plan.envs_per_split, table, rings, wakers, splits, 0.0, self.worker_deaths
        )

    def let_roles_act(self) -> None:
        """Lets everyone continue, and puts others in the place of the dead as the runner does."""
        for worker_idx, worker in enumerate(self.workers):
            try:
                if worker is not None:
                    worker.poll()
                elif self.worker_deaths.is_acknowledged(worker_idx):
                    self.workers[worker_idx] = self.new_worker(worker_idx, Life(np.inf))
            except Death:
                self.has_worker_died = True
                self.worker_deaths.announce(worker_idx)
                self.workers[worker_idx] = None
        try:
            if self.server is not None:
                self.server.poll()
        except Death:
            self.has_server_died = True
            self.server = self.new_server(Life(np.inf))
