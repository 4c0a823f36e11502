"""An inference worker: it answers the requests of all splits of the rollout workers that it serves.

consumes  requests (one ring from each rollout worker, and the request table), published weights
produces  actions with values and log-probs (slot rows, or the mailbox), answers (request table)
cleans up after rollout workers that died (see `asyncrl.buffers.control`)
waits     for requests until woken or for WAIT_S; for more requests as `RequestBatcher` says
stops     when the run has ended

All its state is in the arena: a restarted inference worker begins with the open requests of the table, and empties the
rings, which name the same requests or answered ones.
"""

from __future__ import annotations

import time
from collections.abc import Container, Mapping

from asyncrl.buffers.control import WorkerDeaths
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.acting_policies import ActingPolicies
from asyncrl.observers.reports import InferenceReport, Phase, PhaseTimer

WAIT_S = 0.1


class InferenceWorker:
    """Serves requests in batches. Owns its policy."""

    waiting_for = Phase.WAIT_REQUESTS

    def __init__(
        self,
        worker_idx: int,
        policy: ActingPolicy | ActingPolicies,
        num_envs: int,
        table: RequestTable,
        rings: Mapping[int, IndexRing],
        clients: Mapping[int, Waker],
        splits_per_client: int,
        max_wait_s: float,
        worker_deaths: WorkerDeaths,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Begins with the open requests of the table.

        `rings` come from the rollout workers that it serves, and `clients` wake them, both by the workers' indices. A
        request waits for others at most `max_wait_s`; `num_envs` is the number of environments of a split.
        """
        self._worker_idx = worker_idx
        self._policy = policy
        self._num_envs = num_envs
        self._table = table
        self._rings = rings
        self._clients = clients
        self._splits_per_client = splits_per_client
        self._batcher = RequestBatcher(len(rings) * max(1, splits_per_client // 2), max_wait_s)
        self._worker_deaths = worker_deaths
        self._deaths_seen = 0
        self.report_started = time.monotonic()
        self.phases = phases or PhaseTimer()
        self._num_forward_passes = 0
        self._num_observations = 0
        for ring in rings.values():
            ring.pop_all()
        served = (split_idx for worker_idx in rings for split_idx in self._splits_of(worker_idx))
        self._batcher.add([split_idx for split_idx in served if table.is_open(split_idx)], time.monotonic())

    def poll(self) -> float:
        """Takes new requests and answers a batch if it is time; returns seconds to wait before the next call."""
        if self._worker_deaths.total != self._deaths_seen:
            self._clean_up_after_deaths()
        now = time.monotonic()
        for ring in self._rings.values():
            self._batcher.add(ring.pop_all(), now)
        wait_s = self._batcher.wait_s(now)
        if wait_s is None:
            return WAIT_S
        if wait_s > 0.0:
            return wait_s
        self._answer(self._batcher.take())
        self.phases.charge(Phase.OTHER)
        return 0.0

    def report(self) -> InferenceReport:
        """Returns the metrics since the last report."""
        now, phases = time.monotonic(), self.phases.take()
        report = InferenceReport(
            worker_idx=self._worker_idx,
            wall_s=now - self.report_started,
            num_forward_passes=self._num_forward_passes,
            num_observations=self._num_observations,
            phases=phases,
            notice=self._policy.pop_warning(),
        )
        self.report_started = now
        self._num_forward_passes = self._num_observations = 0
        return report

    def _clean_up_after_deaths(self) -> None:
        """Closes the requests of workers that died; nothing is written into their slots any more."""
        self._deaths_seen = self._worker_deaths.total
        for worker_idx in self._worker_deaths.pending_for_server(self._rings):
            splits = self._splits_of(worker_idx)
            self._rings[worker_idx].pop_all()
            self._batcher.drop(splits)
            for split_idx in splits:
                self._table.answer(split_idx)
            self._worker_deaths.acknowledge_as_server(worker_idx)

    def _splits_of(self, worker_idx: int) -> range:
        return range(worker_idx * self._splits_per_client, (worker_idx + 1) * self._splits_per_client)

    def _answer(self, splits: list[int]) -> None:
        requests = {split_idx: self._table.open_request(split_idx) for split_idx in splits}
        places = {split_idx: place for split_idx, place in requests.items() if place is not None}
        if not places:
            return
        self._policy.answer(list(places.values()))
        for split_idx in places:
            self._table.answer(split_idx)
        for client in {split_idx // self._splits_per_client for split_idx in places}:
            self._clients[client].wake()
        self._num_forward_passes += 1
        self._num_observations += len(places) * self._num_envs


class RequestBatcher:
    """Decides when to run a forward pass: at once for a full batch, otherwise after a short wait for more requests.

    While one split of a worker waits, another steps, so about one request of each worker is open at a time, and a batch
    of that size is full. A smaller one waits a little, because a pass over two splits costs hardly more than a pass
    over one, but at most `max_wait_s`, because a worker whose splits all wait does nothing.

    Requests keep the order of their arrival. Times are seconds of one monotonic clock.
    """

    def __init__(self, full_batch: int, max_wait_s: float) -> None:
        self._full_batch = full_batch
        self._max_wait_s = max_wait_s
        self._splits: dict[int, None] = {}  # a set that keeps the order of arrival
        self._oldest: float | None = None

    def add(self, splits: list[int], now: float) -> None:
        """Adds requests of splits; a split that is already there counts once."""
        if splits and self._oldest is None:
            self._oldest = now
        self._splits.update(dict.fromkeys(splits))

    def drop(self, splits: Container[int]) -> None:
        """Removes the requests of splits whose worker has died."""
        self._splits = {split_idx: None for split_idx in self._splits if split_idx not in splits}
        if not self._splits:
            self._oldest = None

    def wait_s(self, now: float) -> float | None:
        """Returns the seconds until the batch should run: 0 for at once, None if there is no request."""
        if self._oldest is None:
            return None
        if len(self._splits) >= self._full_batch:
            return 0.0
        return max(0.0, self._oldest + self._max_wait_s - now)

    def take(self) -> list[int]:
        """Removes and returns the whole batch."""
        splits, self._splits, self._oldest = list(self._splits), {}, None
        return splits
