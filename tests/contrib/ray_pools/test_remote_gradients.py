"""Gradients of pools: each arrives once, at weights as new as its permit names, and statistics outlive a pool."""

from __future__ import annotations

import random
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from small_runs import BOX, CountingWaker, planned

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.shared_tensors import GlobalClock, SharedMoments, SharedTensor
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import PLACES_OF_A_WORKER as PLACES
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.batches import SentGradients
from asyncrl.contrib.ray_pools.sent_gradients import GradientReceiver, GradientSender
from asyncrl.contrib.ray_pools.worker_states import WorkerStates
from asyncrl.models.sizes import SharedSizes
from asyncrl.modes.choice import arena_specs
from asyncrl.run.setup import RunSetup

SIZE = 3
ROLLOUT = 8
"""Environment steps of a gradient."""


class Pool:
    """A pool whose workers write marked gradients, its bridge's receiver, and what is under way between them."""

    def __init__(self, game: Game, workers: list[int]) -> None:
        self.game, self.workers = game, workers
        self.receiver = GradientReceiver(game.setup, workers)
        self.collected_before = {worker: game.setup.control.collected_steps(worker) for worker in workers}
        arena = Arena.create(game.arena.specs)
        self.setup = RunSetup(game.config, game.plan, BOX, arena, Path(), None, 0)
        wakers: Any = {worker: CountingWaker() for worker in workers}
        waker: Any = SimpleNamespace(wait=lambda timeout_s: False)
        self.channel = WeightsChannel(arena)
        self.sender = GradientSender(self.setup, waker, wakers, self.receiver.start)
        self.places = GradientPlaces(arena)
        self.clock = GlobalClock(arena, self.setup.control, game.plan.num_workers, 0, 10**9)
        self.moments = SharedMoments(arena, "obs")
        self.to_pool: deque[tuple[int, list[tuple[int, int]]]] = deque()
        self.to_learner: deque[tuple[SentGradients, dict[int, int]]] = deque()

    def compute(self, worker: int) -> bool:
        """A worker collects a rollout, takes it into its statistics, and writes a gradient with its own mark."""
        if self.places.free_place(worker) is None:
            return False
        game, version = self.game, self.channel.newest.version
        self.setup.control.count_steps(worker, ROLLOUT)
        entry = self.moments.entry(worker + 1)
        entry[0] += ROLLOUT
        self.moments.write_entry(worker + 1, entry)
        place = self.places.free_place(worker)
        assert place is not None
        game.num_made += 1
        mark = [worker, version, game.num_made]
        self.places.write(place, np.array(mark, np.float32), self.places.last_number(worker) + 1)
        self.clock.use_steps(worker)
        return True

    def move(self) -> None:
        """Everything that is under way arrives, and what is new is sent."""
        game = self.game
        newest = game.channel.newest
        self.channel.publish(np.full(SIZE, newest.version, np.float32), newest.version, newest.env_steps)
        self.sender.record_publication(newest.number)
        while self.to_pool:
            self.sender.permit(*self.to_pool.popleft())
        while self.to_learner:
            sent, collected = self.to_learner.popleft()
            self.receiver.write(sent, 0.0)
            for worker, count in collected.items():
                so_far = game.setup.control.collected_steps(worker) - self.collected_before[worker]
                game.setup.control.count_steps(worker, count - so_far)
        if permits := self.receiver.take_permits():
            self.to_pool.append((game.channel.newest.number, permits))
        if (sent_now := self.sender.take(0.0)) is not None:
            collected = {worker: self.setup.control.collected_steps(worker) for worker in self.workers}
            self.to_learner.append((sent_now, collected))


class Game:
    """A parameter server that combines two gradients of four workers, which are in two pools."""

    def __init__(self) -> None:
        settings: dict[str, Any] = {"backend": "hogwild", "algo": "a2c", "hogwild_mode": "gradients"}
        self.config = TrainConfig(cluster="ray", **settings)
        self.plan = planned(cluster="ray", num_remote_hosts=2, num_workers_per_remote_host=2, **settings)
        shared = SharedSizes({"model": SIZE}, {"obs": 2})
        self.arena = Arena.create(arena_specs(BOX, self.plan, [SIZE], shared))
        self.setup = RunSetup(self.config, self.plan, BOX, self.arena, Path(), None, 0)
        self.places, self.channel = GradientPlaces(self.arena), WeightsChannel(self.arena)
        self.num_made = self.version = 0
        self.combined: list[list[int]] = []
        self.publish()
        self.pools = [Pool(self, [0, 1]), Pool(self, [2, 3])]

    def publish(self) -> None:
        self.channel.publish(np.full(SIZE, self.version, np.float32), self.version, 0)

    def combine(self, count: int = 2) -> None:
        if (taken := self.places.take(count)) is not None:
            self.combined += self.places.values[taken].astype(int).tolist()
            self.version += 1
            self.publish()
            self.places.free(taken)

    def replace(self, number: int) -> None:
        """A pool dies with all that is under way, and another takes its place."""
        self.pools[number] = Pool(self, self.pools[number].workers)


@pytest.mark.parametrize("seed", range(5))
def test_each_gradient_that_arrives_is_combined_once_whatever_dies(seed: int) -> None:
    chance, game, num_dead = random.Random(seed), Game(), 0
    while len(game.combined) < 1500:
        pool = chance.choice(game.pools)
        if chance.random() < 0.6:
            pool.compute(chance.choice(pool.workers))
        if chance.random() < 0.5:
            pool.move()
        if chance.random() < 0.4:
            game.combine()
        if num_dead < 50 and chance.random() < 0.02:
            game.replace(chance.randrange(2))
            num_dead += 1
    assert num_dead == 50
    marks = [mark for _, _, mark in game.combined]
    assert len(set(marks)) == len(marks), "no gradient is combined twice"
    # Two workers of a pool have at most two gradients each, on either side, that were lost with it.
    under_way = 2 * len(game.pools) * 2 * PLACES
    assert game.num_made - len(marks) <= num_dead * 2 * PLACES + under_way
    for worker in range(4):
        own = [mark for other, _, mark in game.combined if other == worker]
        assert own == sorted(own), "gradients of a worker are combined in their order"


def test_without_deaths_no_gradient_is_lost() -> None:
    chance, game = random.Random(7), Game()
    for _ in range(3000):
        pool = chance.choice(game.pools)
        pool.compute(chance.choice(pool.workers))
        pool.move()
        game.combine()
    for _ in range(20):
        for pool in game.pools:
            pool.move()
        game.combine(1)
    assert sorted(mark for _, _, mark in game.combined) == [*range(1, game.num_made + 1)]
    by_worker = Counter(worker for worker, _, _ in game.combined)
    assert min(by_worker.values()) > 100


def test_a_worker_that_may_write_again_has_the_weights_that_its_gradient_led_to() -> None:
    game = Game()
    pool = game.pools[0]
    pool.sender.permit(game.channel.newest.number + 1, [(0, 0)])
    assert not pool.compute(0), "the weights that the permit names have not arrived"
    game.version = 5
    game.publish()
    pool.move()
    assert pool.compute(0)
    assert pool.places.values[0].tolist() == [0, 5, 1]


def test_a_worker_has_at_most_two_gradients_that_are_not_combined() -> None:
    game = Game()
    pool = game.pools[0]
    for _ in range(10):
        pool.compute(0)
        pool.move()
    assert game.num_made == PLACES
    assert len(game.places.ready_places()) == PLACES


def test_statistics_and_dropped_steps_outlive_a_pool() -> None:
    game = Game()
    pool = game.pools[0]
    for _ in range(2):
        pool.move()
    assert pool.compute(0)
    for _ in range(2):
        pool.move()
    pool.setup.control.count_steps(0, 5)  # of a rollout that is not finished
    pool.to_learner.clear()
    game.setup.control.count_steps(0, 5)
    game.replace(0)
    new = game.pools[0]
    assert new.clock.use_steps(0) == 5, "the worker reports them as dropped"
    assert new.moments.entry(1)[0] == ROLLOUT
    for _ in range(3):
        new.move()
    assert new.compute(0)
    for _ in range(2):
        new.move()
    assert SharedMoments(game.arena, "obs").entry(1)[0] == 2 * ROLLOUT
    clock = GlobalClock(game.arena, game.setup.control, 4, 0, 10**9)
    assert clock.use_steps(0) == 0


def test_dropped_steps_are_reported_once_though_the_next_pool_dies_before_its_first_gradient() -> None:
    game = Game()
    game.setup.control.count_steps(0, 5)
    reported = 0
    for _ in range(3):
        game.replace(0)
        (pool, _) = game.pools
        reported += pool.clock.use_steps(0)
        for _ in range(3):
            pool.move()
    assert reported == 5


def test_steps_of_a_gradient_that_has_not_left_are_not_used() -> None:
    game = Game()
    pool = game.pools[0]
    for _ in range(2):
        pool.move()
    take = pool.sender._places.take

    def take_while_a_worker_goes_on(count: int) -> list[int] | None:
        taken = take(count)
        pool.compute(0)
        pool.clock.finish(0)
        return taken

    with mock.patch.object(pool.sender._places, "take", take_while_a_worker_goes_on):
        assert pool.compute(1)
        sent = pool.sender.take(0.0)
    assert sent is not None
    assert [(state.used_steps, state.has_finished) for state in sent.states] == [(0, False), (ROLLOUT, False)]
    assert [bool(state.moments) for state in sent.states] == [False, True]


def test_a_gradient_for_a_place_that_the_pool_does_not_have_is_refused() -> None:
    game = Game()
    states = [WorkerStates(game.arena).read(0)]
    sent = SentGradients([0], np.zeros((1, SIZE), np.float32), states)
    with pytest.raises(RuntimeError, match="place 0, which the pool does not have"):
        game.pools[0].receiver.write(sent, 0.0)


def test_pools_know_the_steps_and_updates_of_the_run_and_tell_when_they_are_done() -> None:
    game = Game()
    pool = game.pools[1]
    game.channel.publish(np.zeros(SIZE, np.float32), 12, 3000)
    pool.move()
    assert pool.clock.env_steps == 3000
    assert SharedTensor(pool.setup.arena, "model").num_steps == 12, "staleness counts the updates of all workers"
    learners = GlobalClock(game.arena, game.setup.control, 4, 0, 3000)
    for worker in range(4):
        assert not learners.have_all_finished
        owner = game.pools[worker // 2]
        owner.clock.finish(worker)
        for _ in range(2):
            owner.move()
    assert learners.have_all_finished
    assert all(owner.sender.take(0.0) is None for owner in game.pools), "what has been told is not told again"
