"""The process on the learner's machine that stands for a pool of rollout workers on another one.

consumes  what the pool's workers are granted: slots (rings from the learner), rows of a replay or places of gradients
          (words of the learner); weights, messages to the environments (arena); batches of the pool (answers to calls)
produces  ready slots (slots of the arena, rings to the learner), rows of a replay or gradients (arena); reports;
          permits and weights (calls of the pool)
waits     for the learner or an answer of the pool to wake it, at most WAIT_S
stops     when the run has ended; it fails if the pool does, or does not answer for `silence_s`

It is all that the learner's machine knows of the pool: if it ends, Ray ends the pool, and the runner starts another
bridge with another pool, after the learner has cleared the slots that the pool had not sent yet. With a replay the new
bridge closes the pool's stripes, and the new pool begins behind their last rows. With gradients it begins with the
statistics that had arrived.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import numpy as np

from asyncrl.buffers.messages import Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.contrib.ray_pools.batches import Batch, Receiver
from asyncrl.contrib.ray_pools.connection import NUM_REQUESTS, RayConnection
from asyncrl.contrib.ray_pools.ends import ends_of
from asyncrl.contrib.ray_pools.pool import PoolStart
from asyncrl.contrib.ray_pools.sent_rows import pool_specs
from asyncrl.contrib.ray_pools.settings import ClusterSettings
from asyncrl.observers.reports import Report
from asyncrl.processes.children import RunFailed
from asyncrl.processes.reporting import ReportSender
from asyncrl.run.setup import RunSetup

WAIT_S = 0.01
SILENCE_S = 60.0
CLOSE_S = 2.5
CLOCK_S = 30.0
PAUSE_S = 5.0
"""A longer time between two polls is not a silence of the pool: this process was stopped, or the machine asleep."""
_REPORT_EVERY_S = 10.0

log = logging.getLogger(__name__)


class ClockOffset:
    """How far the pool's `time.monotonic` is ahead of this machine's: half of a round trip may be unknown.

    Clocks drift apart, so an answer counts for one to two times `CLOCK_S`.

    Attributes:
        offset_s: of the call with the shortest round trip.
    """

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._ends_at = -math.inf
        self._before = self._now = (math.inf, 0.0)  # shortest round trip, and offset, of a time `CLOCK_S`

    def record(self, asked_at: float, pool_time: float, answered_at: float) -> None:
        """Takes the times of a call and of its answer here, and the pool's time in between."""
        if answered_at >= self._ends_at:
            is_recent = answered_at < self._ends_at + CLOCK_S
            self._before = self._now if is_recent else (math.inf, 0.0)
            self._ends_at, self._now = answered_at + CLOCK_S, (math.inf, 0.0)
        self._now = min(self._now, (answered_at - asked_at, pool_time - (asked_at + answered_at) / 2.0))
        self.offset_s = min(self._before, self._now)[1]


@dataclasses.dataclass
class _Request:
    """A call of the pool, and when it was answered."""

    future: Future[Any]
    asked_at: float
    answered_at: float = 0.0


class PoolBridge:
    """Connects the learner's arena and a pool. `connection` calls the pool, and `learner` is woken by what arrives.

    Attributes:
        num_bytes, num_batches: what has arrived so far.
    """

    def __init__(
        self,
        setup: RunSetup,
        workers: Sequence[int],
        receiver: Receiver,
        connection: RayConnection,
        waker: Waker,
        learner: Waker,
        send: Callable[[Report], None],
        start_timeout_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        arena = setup.arena
        self._receiver = receiver
        # In async mode samples may be a little older. If they waited for weights that cannot be sent before others have
        # arrived, each permit would take up to a round trip more.
        plan = setup.plan
        self._needs_newest = not plan.async_rl or plan.fixed_lag or plan.hogwild is not None
        self._control = setup.control
        self._channel = WeightsChannel(arena)
        self._block = np.empty(self._channel.num_values, np.float32)
        self._connection, self._waker, self._learner, self._send = connection, waker, learner, send
        self._start_timeout_s, self._silence_s = start_timeout_s, silence_s
        self._polled_at, self._silent_s, self._has_answered = time.monotonic(), 0.0, False
        # The pool has the newest message of before; one that it gets twice changes nothing.
        self._publication, self._num_training_infos = 0, 0
        self._has_stopped = False
        self._collected = dict.fromkeys(workers, 0)
        self._clock = ClockOffset()
        self._publishing: _Request | None = None
        self._telling: _Request | None = None
        self._updates: list[_Request] = []
        self._taking: list[_Request] = []
        self._batches: dict[int, Batch] = {}
        self._next_batch = 0
        self.num_bytes = self.num_batches = 0

    def poll(self) -> None:
        """Passes on what is new on both sides.

        Raises:
            RunFailed: the pool has failed, was lost, or does not answer.
        """
        for worker_idx in self._collected:
            self._control.count_turn(worker_idx)  # the pool watches its workers itself
        # Permits are read before the number of the weights, which are then at least as new as when they were given.
        permits = self._receiver.take_permits() if len(self._updates) < NUM_REQUESTS else []
        newest = self._channel.newest.number
        self._publish_newest()
        if permits:
            number = newest if self._needs_newest else max(1, self._publication)
            works = self._control.has_finished_episode  # environments have, here or in any pool
            self._updates.append(self._call("permit", number, permits, works))
        if self._telling is not None and self._record_time(self._telling):
            self._telling = None
        if self._telling is None and self._control.num_training_infos != self._num_training_infos:
            self._num_training_infos, info = self._control.read_training_info()
            self._telling = self._call("set_training_info", info)
        if (self._control.stop_requested or self._control.must_finish) and not self._has_stopped:
            self._has_stopped = True
            self._updates.append(self._call("request_stop"))
        self._updates = [request for request in self._updates if not self._record_time(request)]
        for request in [request for request in self._taking if request.future.done()]:
            self._taking.remove(request)
            batch: Batch = self._result(request)
            self._batches[batch.number] = batch
        while len(self._taking) < NUM_REQUESTS:
            self._taking.append(self._call("take"))
        while (batch_or_none := self._batches.pop(self._next_batch, None)) is not None:
            self._next_batch += 1
            self._unpack(batch_or_none)
        self._require_signs_of_life(time.monotonic())

    def close(self) -> None:
        """Ends the pool, and sends the last reports of its workers. One that has not started is not waited for."""
        last = [self._connection.call("close"), *(request.future for request in self._taking)]
        ended, late = futures.wait(last, CLOSE_S if self._has_answered else 0.0)
        for future in ended:
            batch: Batch | None = None if future.exception() is not None else future.result()
            for report in () if batch is None else batch.reports:
                self._send(report)
        if late:
            log.warning("the pool did not answer at the end")
        self._connection.close()

    def _publish_newest(self) -> None:
        if self._publishing is not None:
            if not self._record_time(self._publishing):
                return
            self._publishing = None
        news = self._channel.read(self._block, self._publication)
        if news is not None:
            self._publication = news.number
            self._publishing = self._call("publish", *news, self._block.copy(), self._control.steps_by_time)

    def _unpack(self, batch: Batch) -> None:
        """Writes the slots, rows or gradients of a batch into the arena."""
        self.num_batches += 1
        for worker_idx, collected in batch.collected.items():
            self._control.count_steps(worker_idx, collected - self._collected[worker_idx])
            self._collected[worker_idx] = collected
        if batch.payload is not None:
            self.num_bytes += batch.payload.num_bytes
            self._receiver.write(batch.payload, self._clock.offset_s)
            self._learner.wake()
        if batch.has_finished_episode:
            self._control.has_finished_episode = True
        for report in batch.reports:
            self._send(report)
        if batch.failure is not None:
            raise batch.failure

    def _call(self, method: str, *args: Any) -> _Request:
        request = _Request(self._connection.call(method, *args), time.monotonic())

        def answered(_: Future[Any]) -> None:
            request.answered_at = time.monotonic()
            self._waker.wake()

        request.future.add_done_callback(answered)
        return request

    def _record_time(self, request: _Request) -> bool:
        """Whether a call that returns the pool's time was answered; records that time."""
        if not request.future.done():
            return False
        pool_time: float = self._result(request)
        self._clock.record(request.asked_at, pool_time, request.answered_at or time.monotonic())
        return True

    def _result(self, request: _Request) -> Any:
        try:
            answer = request.future.result(0.0)
        except Exception as error:
            raise self._connection.explain(error) from error
        self._silent_s, self._has_answered = 0.0, True
        return answer

    def _require_signs_of_life(self, now: float) -> None:
        passed_s, self._polled_at = now - self._polled_at, now
        self._silent_s += passed_s if passed_s < PAUSE_S else 0.0
        if not self._has_answered and self._silent_s > self._start_timeout_s:
            text = f"Ray has not placed and started it within {self._start_timeout_s:g} s (--remote_start_timeout)"
            raise RunFailed(text, is_death=True)
        if self._has_answered and self._silent_s > self._silence_s:
            raise RunFailed(f"it has not answered for {self._silent_s:.0f} s", is_death=True)


def bridge_main(setup: RunSetup, workers: Sequence[int], waker: Waker, learner: Waker, reports: ReportSender) -> None:
    """The process of a bridge."""
    settings, control = ClusterSettings.of(setup.config), setup.control
    make_receiver, _ = ends_of(setup.plan)
    receiver = make_receiver(setup, workers)
    start = PoolStart(
        config=setup.config,
        plan=setup.plan,
        spec=setup.spec,
        rank=setup.rank,
        arena=pool_specs(setup.arena.specs, setup.plan),
        workers=workers,
        seed_steps=setup.seed_steps,
        attempts=setup.attempts,
        has_finished_episode=control.has_finished_episode,
        training_info=control.newest_training_info,
        begins_with=receiver.start,
    )
    connection = RayConnection(settings, start)
    log.info("connected; waiting for a machine with %d CPUs", len(workers))
    bridge = PoolBridge(
        setup, workers, receiver, connection, waker, learner, reports.send, settings.remote_start_timeout
    )
    reported_at, num_bytes, num_batches = time.monotonic(), 0, 0
    try:
        while not control.ended:
            bridge.poll()
            waker.wait(WAIT_S)
            if (passed_s := time.monotonic() - reported_at) >= _REPORT_EVERY_S:
                rate, batches = (bridge.num_bytes - num_bytes) / passed_s, bridge.num_batches - num_batches
                log.info("%.3f MB/s and %.1f messages/s arrive", rate / 1e6, batches / passed_s)
                reported_at, num_bytes, num_batches = time.monotonic(), bridge.num_bytes, bridge.num_batches
    except RunFailed as failure:
        connection.close()
        numbers = f"s {workers[0]} to {workers[-1]}" if len(workers) > 1 else f" {workers[0]}"
        summary = f"the pool of rollout worker{numbers}: {failure.summary}"
        rest = failure.details, failure.exit_code, failure.is_final, failure.is_death
        raise RunFailed(summary, *rest) from failure
    bridge.close()
