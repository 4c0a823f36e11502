"""An inference worker: it answers the requests of all splits of the rollout workers that it serves.

consumes  requests (one ring from each rollout worker, and the request table), published weights
produces  actions and what goes with them (slot rows, or the mailbox), answers (request table)
settles   deaths of rollout workers that it serves (see `asyncrl.buffers.control`)
waits     for requests until woken or for WAIT_S, then looks again; for company as `batching` says
stops     when the run has ended

It holds nothing that is not in the arena: one that takes the place of a dead one begins with the open requests of the
table, and throws away what is in the rings, which is news of the same requests or of answered ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from asyncrl.buffers.control import Departures
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.inference.batching import RequestBatcher
from asyncrl.models.acting import ActingPolicy
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import InferenceReport

WAIT_S = 0.1


class InferenceWorker:
    """Serves requests in batches. Owns its policy."""

    def __init__(
        self,
        worker_idx: int,
        policy: ActingPolicy,
        num_envs: int,
        table: RequestTable,
        rings: Mapping[int, IndexRing],
        clients: Mapping[int, Waker],
        splits_per_client: int,
        max_wait_s: float,
        departures: Departures,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Takes the rings from the rollout workers that it serves, and their wakers, by the workers' indices.

        `num_envs` is the number of environments in a split.
        """
        self._worker_idx = worker_idx
        self._policy = policy
        self._num_envs = num_envs
        self._table = table
        self._rings = rings
        self._clients = clients
        self._splits_per_client = splits_per_client
        self._batcher = RequestBatcher(len(rings) * max(1, splits_per_client // 2), max_wait_s)
        self._departures = departures
        self._departures_seen = 0
        self._report_started = time.monotonic()
        self.phases = phases or PhaseTimer()
        self._num_forward_passes = 0
        self._num_observations = 0
        for ring in rings.values():
            ring.pop_all()
        served = (split_idx for worker_idx in rings for split_idx in self._splits_of(worker_idx))
        self._batcher.add([split_idx for split_idx in served if table.is_open(split_idx)], time.monotonic())

    def poll(self) -> float:
        """Takes in new requests and answers a batch if it is time.

        Returns:
            Seconds to wait, unless woken, before polling again.
        """
        if self._departures.total != self._departures_seen:
            self._let_go_of_the_dead()
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
        """What was done since the last report."""
        now, phases = time.monotonic(), self.phases.take()
        report = InferenceReport(
            worker_idx=self._worker_idx,
            wall_s=now - self._report_started,
            busy_s=busy_s(phases),
            num_forward_passes=self._num_forward_passes,
            num_observations=self._num_observations,
            phases=phases,
            notice=self._policy.pop_warning(),
        )
        self._report_started = now
        self._num_forward_passes = self._num_observations = 0
        return report

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        return Phase.WAIT_REQUESTS

    @property
    def report_age_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._report_started

    def close(self) -> None:
        """Nothing to give back."""

    def _let_go_of_the_dead(self) -> None:
        """Closes what workers that died have asked, so that nothing is written on their behalf from here on."""
        self._departures_seen = self._departures.total
        for worker_idx in self._departures.for_server(self._rings):
            splits = self._splits_of(worker_idx)
            self._rings[worker_idx].pop_all()
            self._batcher.drop(splits)
            for split_idx in splits:
                self._table.close(split_idx)
            self._departures.settle_as_server(worker_idx)

    def _splits_of(self, worker_idx: int) -> range:
        first = worker_idx * self._splits_per_client
        return range(first, first + self._splits_per_client)

    def _answer(self, splits: list[int]) -> None:
        asked = [(split_idx, self._table.open_request(split_idx)) for split_idx in splits]
        served = [(split_idx, place) for split_idx, place in asked if place is not None]
        if not served:
            return
        self._policy.answer([place for _, place in served])
        for split_idx, _ in served:
            self._table.answer(split_idx)
        for client in {split_idx // self._splits_per_client for split_idx, _ in served}:
            self._clients[client].wake()
        self._num_forward_passes += 1
        self._num_observations += len(served) * self._num_envs
