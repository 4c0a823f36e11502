"""Each request is answered once, by the one worker that serves its split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from small_runs import BOX, CountingWaker, planned, small_arena

from asyncrl.buffers.control import WorkerDeaths
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.config.schema import TrainConfig
from asyncrl.inference.worker import WAIT_S, InferenceWorker, RequestBatcher
from asyncrl.rollout.worker import RemoteActions
from asyncrl.run.setup import RunSetup

NUM_WORKERS, SPLITS = 3, 2
PLAN = planned(
    batch_size=24,
    num_workers=NUM_WORKERS,
    num_envs_per_worker=4,
    worker_num_splits=SPLITS,
    inference_mode="central",
    num_inference_workers=2,
)


class FakePolicy:
    """Notes what it is asked, and that no request was answered before it was done."""

    def __init__(self, table: RequestTable, log: list[str]) -> None:
        self._table = table
        self._log = log
        self.answered: list[list[tuple[int, int]]] = []
        self.watched: set[int] = set()

    def pop_warning(self) -> str | None:
        return "no graphs"

    def answer(self, places: Sequence[tuple[int, int]]) -> None:
        assert all(self._table.is_open(split_idx) for split_idx in self.watched)
        self._log.append("answer")
        self.answered.append(list(places))


class Service:
    """Inference worker 0, which serves rollout workers 0 and 2, and its clients."""

    def __init__(self, max_wait_s: float = 0.0) -> None:
        self.arena, self.slots = small_arena(PLAN)
        self.table = RequestTable(self.arena)
        self.log: list[str] = []
        self.policy = FakePolicy(self.table, self.log)
        setup = RunSetup(TrainConfig(), PLAN, BOX, self.arena, Path(), None, 0)
        served = setup.served_by(0)
        self.wakers = {worker: CountingWaker() for worker in served}
        rings = {worker: IndexRing(self.arena, f"requests.{worker}") for worker in served}
        self.worker_deaths = WorkerDeaths(self.arena, has_server=True, has_slots=True)
        self._rings, self._max_wait_s = rings, max_wait_s
        self.server = CountingWaker()
        self.worker = self.new_worker()

    def new_worker(self) -> InferenceWorker:
        return InferenceWorker(
            0,
            self.policy,
            self.slots.num_envs,
            self.table,
            self._rings,
            self.wakers,
            SPLITS,
            self._max_wait_s,
            self.worker_deaths,
        )

    def die_and_be_replaced(self) -> None:
        """Another process takes the inference worker's place; nothing but the arena crosses."""
        self.worker = self.new_worker()

    def ask(self, split_idx: int, slot: int, row: int) -> RemoteActions:
        ring = IndexRing(self.arena, f"requests.{split_idx // SPLITS}")
        actions = RemoteActions(self.table, ring, self.server)
        actions.request(split_idx, slot, row)
        return actions


def test_requests_of_several_workers_are_answered_once_in_one_batch() -> None:
    service = Service()
    service.policy.watched = {1, 4}
    clients = {1: service.ask(1, slot=3, row=0), 4: service.ask(4, slot=0, row=2)}
    assert not any(client.is_answered(split_idx) for split_idx, client in clients.items())
    assert service.server.count == 2
    assert service.worker.poll() == 0.0
    assert service.policy.answered == [[(3, 0), (0, 2)]]
    assert all(client.is_answered(split_idx) for split_idx, client in clients.items())
    assert {worker: waker.count for worker, waker in service.wakers.items()} == {0: 1, 2: 1}
    assert service.worker.poll() == WAIT_S
    assert len(service.policy.answered) == 1
    assert service.log == ["answer"]


def test_both_splits_of_a_worker_that_ask_together_wake_it_once() -> None:
    service = Service()
    service.ask(0, slot=1, row=0)
    service.ask(1, slot=2, row=1)
    service.worker.poll()
    assert service.policy.answered == [[(1, 0), (2, 1)]]
    assert {worker: waker.count for worker, waker in service.wakers.items()} == {0: 1, 2: 0}
    report = service.worker.report()
    assert (report.num_forward_passes, report.num_observations) == (1, 2 * service.slots.num_envs)
    assert report.notice == "no graphs"


def test_news_of_a_request_that_was_answered_already_changes_nothing() -> None:
    service = Service()
    service.ask(0, slot=1, row=0)
    service.worker.poll()
    IndexRing(service.arena, "requests.0").push(0)
    service.worker.poll()
    assert len(service.policy.answered) == 1


def test_a_lone_request_waits_for_company_until_each_client_has_asked() -> None:
    service = Service(max_wait_s=1000.0)
    service.ask(0, slot=1, row=0)
    assert 0.0 < service.worker.poll() <= 1000.0 + 1e-6  # a difference of clock readings, rounded
    assert service.policy.answered == []
    service.ask(5, slot=2, row=0)
    assert service.worker.poll() == 0.0
    assert service.policy.answered == [[(1, 0), (2, 0)]]


def test_requests_for_another_inference_worker_are_left_alone() -> None:
    service = Service()
    other = service.ask(2, slot=1, row=0)
    assert service.worker.poll() == WAIT_S
    assert not other.is_answered(2)


def test_who_takes_its_place_answers_what_is_open_whatever_the_rings_say() -> None:
    service = Service()
    service.ask(0, slot=1, row=0)
    service.worker.poll()
    service.ask(0, slot=1, row=1)
    service.ask(4, slot=2, row=0)
    IndexRing(service.arena, "requests.2").pop_all()  # died after it had taken this news
    service.die_and_be_replaced()
    service.worker.poll()
    assert service.policy.answered == [[(1, 0)], [(1, 1), (2, 0)]]
    assert service.worker.poll() == WAIT_S


def test_news_that_comes_after_the_answer_leaves_room_for_the_next() -> None:
    service = Service()
    ring = IndexRing(service.arena, "requests.0")
    for split_idx in (0, 1):
        service.table.ask(split_idx, slot=split_idx, row=0)  # the request is in the table, the news not yet in the ring
    service.die_and_be_replaced()
    service.worker.poll()
    for split_idx in (0, 1):
        ring.push(split_idx)
    for split_idx in (0, 1):
        service.ask(split_idx, slot=split_idx, row=1)
    service.worker.poll()
    assert service.policy.answered == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


def test_what_a_dead_worker_has_asked_is_closed_and_not_answered() -> None:
    service = Service(max_wait_s=1000.0)
    service.ask(0, slot=1, row=0)
    assert service.worker.poll() > 0.0  # it waits for company, its news is taken
    service.ask(1, slot=2, row=0)
    service.worker_deaths.announce(0)
    assert service.worker.poll() == WAIT_S
    assert service.worker_deaths.pending_for_server([0]) == []
    assert not service.table.is_open(0) and not service.table.is_open(1)
    service.ask(0, slot=3, row=0)  # the worker that follows
    service.ask(4, slot=4, row=0)
    service.worker.poll()
    assert service.policy.answered == [[(3, 0), (4, 0)]]


@pytest.mark.parametrize(("num_workers", "num_servers"), [(1, 1), (3, 2), (8, 3), (4, 4)])
def test_each_split_is_served_by_one_inference_worker(num_workers: int, num_servers: int) -> None:
    plan = planned(num_workers=num_workers, inference_mode="central", num_inference_workers=num_servers)
    setup = RunSetup(TrainConfig(), plan, BOX, small_arena(PLAN)[0], Path(), None, 0)
    served = [setup.served_by(server) for server in range(num_servers)]
    assert sorted(worker for workers in served for worker in workers) == list(range(num_workers))
    assert all(worker in served[setup.server_of(worker)] for worker in range(num_workers))
    assert max(map(len, served)) - min(map(len, served)) <= 1


def test_a_full_batch_runs_at_once_and_a_smaller_one_when_its_oldest_has_waited() -> None:
    batcher = RequestBatcher(full_batch=3, max_wait_s=1.0)
    assert batcher.wait_s(now=100.0) is None
    batcher.add([4], now=100.0)
    batcher.add([], now=100.25)
    batcher.add([9], now=100.5)
    assert batcher.wait_s(now=100.5) == 0.5
    assert batcher.wait_s(now=101.0) == 0.0
    assert batcher.wait_s(now=107.0) == 0.0
    batcher.add([2, 5], now=100.75)
    assert batcher.wait_s(now=100.75) == 0.0
    assert batcher.take() == [4, 9, 2, 5]


def test_the_wait_starts_anew_with_the_next_request() -> None:
    batcher = RequestBatcher(full_batch=3, max_wait_s=1.0)
    batcher.add([4], now=100.0)
    batcher.take()
    assert batcher.wait_s(now=105.0) is None
    batcher.add([4], now=105.0)
    assert batcher.wait_s(now=105.25) == 0.75
    batcher = RequestBatcher(full_batch=8, max_wait_s=0.0)  # each request runs at once
    batcher.add([1], now=100.0)
    assert batcher.wait_s(now=100.0) == 0.0
