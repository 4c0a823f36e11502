"""A learner with a replay and pools without processes and without Ray: all move when the test lets them."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from replays import SPEC, TaggedWriter, new_replay
from small_runs import CountingWaker

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.config.plan import ReplayPlan
from asyncrl.config.remote_workers import RemoteWorkers
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.batches import SentRows
from asyncrl.contrib.ray_pools.limiter import RemoteReplayLimiter
from asyncrl.contrib.ray_pools.sent_rows import RowReceiver, RowSender, pool_specs

ENDLESS = 10**12


class TestPool:
    """One pool with one worker for each split, its bridge, and what is under way between them."""

    __test__ = False

    def __init__(self, game: Game, workers: list[int], life: int, is_restarted: bool) -> None:
        self._game, self.workers, self._life = game, workers, life
        remote = RemoteWorkers(rows_in_flight=game.rows_in_flight)
        own = SimpleNamespace(worker_num_splits=1, async_rl=True, remote=remote)
        self.setup: Any = SimpleNamespace(
            config=game.config, spec=SPEC, arena=game.arena, plan=own, steps_at_restart=0 if is_restarted else None
        )
        self.receiver = RowReceiver(self.setup, workers)
        arena = Arena.create(pool_specs(game.arena.specs, own))
        self.stripes, self.limits = ReplayStripes(arena), ReplayLimits(arena)
        wakers: Any = dict.fromkeys(workers, CountingWaker())
        waker: Any = SimpleNamespace(wait=lambda timeout_s: False)
        of_pool: Any = SimpleNamespace(config=game.config, spec=SPEC, arena=arena)
        self.sender = RowSender(of_pool, waker, wakers, self.receiver.start)
        self.writers = {split: self._writer(split) for split in workers}
        self.to_pool: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self.to_learner: deque[SentRows] = deque()
        self.num_arrived = 0  # environment steps

    def _writer(self, split: int) -> TaggedWriter:
        writer = TaggedWriter(self.stripes, split, seed=split + 100 * self._life)
        return writer.begin_life(self._life)

    def step(self, split: int) -> bool:
        """A row of a worker."""
        if not self.limits.may_step(split, self.stripes.num_rows[split], self.stripes.total_env_steps()):
            return False
        before = self.stripes.total_env_steps()
        self.writers[split].write_rows(1)
        self._game.num_made += self.stripes.total_env_steps() - before
        return True

    def kill_worker(self, split: int, life: int) -> None:
        """A worker dies between two rows, and the pool starts another one."""
        self._life = life
        self.stripes.close_episodes(split)
        self._send()  # before the environments of the new worker are reset
        self.writers[split] = self._writer(split)

    def _send(self) -> None:
        if (sent := self.sender.take(0.0)) is not None:
            self.to_learner.append(sent)

    def move(self) -> bool:
        """Everything that is under way arrives, and what is new is sent."""
        moved = bool(self.to_pool or self.to_learner)
        while self.to_pool:
            self.sender.permit(*self.to_pool.popleft())
        while self.to_learner:
            before = self._game.stripes.total_env_steps()
            self.receiver.write(self.to_learner.popleft(), 0.0)
            self.num_arrived += self._game.stripes.total_env_steps() - before
        if permits := self.receiver.take_permits():
            self.to_pool.append((1, permits))
        self._send()
        return moved or bool(self.to_pool or self.to_learner)


class Game:
    """A learner, local splits and pools."""

    def __init__(
        self,
        ratio: float,
        num_local: int,
        pools: list[int],
        num_envs: int,
        warmup: int,
        tolerance: float = 0.0,
        is_async: bool = True,
        rows_in_flight: int = 3,
        target: int = ENDLESS,
        num_rows: int = 3000,
        observations: str = "float32",
    ) -> None:
        """`pools` has the number of splits of each pool."""
        self.rows_in_flight, self.num_envs = rows_in_flight, num_envs
        self.config = TrainConfig(cluster="ray", cluster_observations=observations)
        num_splits = num_local + sum(pools)
        self.arena, self.stripes = new_replay(num_splits, num_envs, num_rows)
        self.limits = ReplayLimits(self.arena)
        plan = ReplayPlan(1000, warmup, ratio, tolerance)
        self.now = 0.0
        common = (self.limits, plan, self.stripes, is_async, target, num_local, rows_in_flight)
        self.limiter = RemoteReplayLimiter(*common, clock=lambda: self.now)
        self.local = [TaggedWriter(self.stripes, split, seed=split) for split in range(num_local)]
        self.num_made = self.num_lives = 0
        self.pools: list[TestPool] = []
        for count in pools:
            self.pools.append(self._pool(list(range(num_local, num_local + count)), is_restarted=False))
            num_local += count
        self.limiter.release()

    def _pool(self, workers: list[int], is_restarted: bool) -> TestPool:
        self.num_lives += 1
        pool = TestPool(self, workers, self.num_lives, is_restarted)
        pool.sender.record_publication(1)
        return pool

    def kill_pool(self, number: int) -> int:
        """A pool dies with all that is under way; returns the steps that are lost with it."""
        dead = self.pools[number]
        self.pools[number] = self._pool(dead.workers, is_restarted=True)
        return dead.stripes.total_env_steps() - dead.num_arrived

    def kill_worker(self, chance: random.Random) -> None:
        self.num_lives += 1
        pool = chance.choice(self.pools)
        pool.kill_worker(chance.choice(pool.workers), self.num_lives)

    def step_local(self, split: int) -> bool:
        if not self.limits.may_step(split, self.stripes.num_rows[split], self.stripes.total_env_steps()):
            return False
        before = self.stripes.total_env_steps()
        self.local[split].write_rows(1)
        self.num_made += self.stripes.total_env_steps() - before
        return True

    def update(self) -> bool:
        due = min(self.limiter.due, 16)
        self.limiter.num_updates += due
        self.limiter.release()
        return due > 0

    def move_all(self, chance: random.Random, speeds: list[float], learner_speed: float = 1.0) -> bool:
        """One round, in which each may move; returns whether anything has."""
        moves = [self.update()] if chance.random() < learner_speed else []
        moves += [self.step_local(split) for split in range(len(self.local)) if chance.random() < speeds[split]]
        for pool in self.pools:
            moves += [pool.step(split) for split in pool.workers if chance.random() < speeds[split]]
            moves += [pool.move()] if chance.random() < 0.5 else []
        return any(moves)
