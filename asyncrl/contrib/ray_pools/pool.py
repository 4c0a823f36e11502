"""A pool: the rollout workers of one other machine, in an actor of Ray, with an arena of the layout of the learner's.

consumes  weights, permits for slots, rows or places, messages to the environments (calls of the bridge)
produces  batches: ready slots, rows of a replay or gradients; reports, counts (answers to `take`)
waits     for ready slots, rows or gradients, at most TAKE_S for each answer
stops     when the bridge closes it, or Ray ends the actor because the bridge has ended; its workers end with it

A worker of the pool that dies is restarted here, with the same slots or stripes, and the learner does not notice. This
process needs no torch.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.control import RunControl, TrainingInfo
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.machine import shares_words
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools.batches import Batch, Payload
from asyncrl.contrib.ray_pools.ends import ends_of
from asyncrl.envs.spec import EnvSpec
from asyncrl.observers.reports import Report, RolloutReport
from asyncrl.processes.children import ChildFailure, ProcessManager, RunFailed, explain, process_context
from asyncrl.processes.torchrun import RankAddress
from asyncrl.run.restart_policy import RestartPolicy, WorkerSpec
from asyncrl.run.setup import RunSetup

TAKE_S = 0.5
WATCH_S = 0.2
GRACE_S = 1.5
_OUTPUT = Path("/dev/stdout")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PoolStart:
    """What a pool is made from.

    Attributes:
        workers: indices of its rollout workers in the run.
        arena: the arrays of the pool's arena.
        seed_steps: environment steps of the run so far, from which seeds are derived.
        has_finished_episode: whether an episode of the run was finished.
        training_info: what the environments are told; None if nothing was sent.
        begins_with: what its sender begins with, see `Receiver.start`.
        attempts: how often the run and this pool were started again, see `RunSetup`.
    """

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    rank: RankAddress | None
    arena: tuple[ArraySpec, ...]
    workers: Sequence[int]
    seed_steps: int
    has_finished_episode: bool
    training_info: TrainingInfo | None
    begins_with: Any = None
    attempts: tuple[int, ...] = (0,)


class Pool:
    """The actor. Its methods may be called at the same time by several threads."""

    def __init__(self, start: PoolStart) -> None:
        """Starts the workers.

        Raises:
            RunFailed: processes of this machine cannot share words.
        """
        if not shares_words():
            text = f"a pool needs the native core on the processor of {socket.gethostname()}, {platform.machine()}"
            raise RunFailed(text, is_final=True)
        arena, self._workers = Arena.create(start.arena), start.workers
        parts = start.config, start.plan, start.spec, arena, Path(), None, start.seed_steps, start.rank
        setup = RunSetup(*parts, attempts=(*start.attempts, 0))  # its workers add their own restarts
        self._control = setup.control
        self._control.has_finished_episode = start.has_finished_episode
        if start.training_info is not None:
            self.set_training_info(start.training_info)
        self._channel = WeightsChannel(arena)
        self._waker = Waker()
        self._worker_wakers = {worker_idx: Waker() for worker_idx in start.workers}
        _, make_sender = ends_of(start.plan)
        self._sender = make_sender(setup, self._waker, self._worker_wakers, start.begins_with)
        self._taking, self._num_batches, self._dropped_reported = threading.Lock(), 0, 0
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._failure: RunFailed | None = None
        # Children would import the script of Ray's worker process as their main module.
        sys.modules["__main__"] = ModuleType("__main__")
        self._processes = ProcessManager(process_context(), lambda name: _OUTPUT)
        specs = [
            WorkerSpec(f"rollout-{idx}", worker_main, (idx, waker, [self._waker], None), (idx,))
            for idx, waker in self._worker_wakers.items()
        ]
        self._restarts = RestartPolicy(self._processes, setup, specs, self._wake_all, self._reports.put)
        self._threads = [
            threading.Thread(target=self._watch, daemon=True),
            threading.Thread(target=self._sender.serve, args=(self._control,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def publish(
        self, number: int, version: int, env_steps: int, block: npt.NDArray[np.float32], steps_by_time: int
    ) -> float:
        """Passes the learner's publication `number` on to the workers; returns this machine's time.

        `steps_by_time` is the learner's word of this name, for workers that train.
        """
        self._control.steps_by_time = steps_by_time
        self._channel.publish(block, version, env_steps)
        self._sender.record_publication(number)
        return time.monotonic()

    def permit(self, publication: int, permits: Sequence[tuple[int, int]], has_finished_episode: bool) -> float:
        """Passes permits on (`Receiver.take_permits`), for these weights or newer; returns the time here.

        `has_finished_episode` says whether any environment of the run has.
        """
        if has_finished_episode:
            self._control.has_finished_episode = True
        self._sender.permit(publication, permits)
        return time.monotonic()

    def set_training_info(self, info: TrainingInfo) -> float:
        """Passes on what the environments are told; returns this machine's time."""
        self._control.send_training_info(RunControl.pack_training_info(info))
        return time.monotonic()

    def request_stop(self) -> float:
        """Tells the workers that the run is about to end; returns this machine's time."""
        self._control.request_stop()
        return time.monotonic()

    def take(self) -> Batch:
        """Waits for slots, rows or gradients, at most `TAKE_S`, and returns them. Calls are answered one by one."""
        with self._taking:
            is_over = self._failure is not None or self._control.ended
            return self._batch(None if is_over else self._sender.take(TAKE_S))

    def close(self) -> Batch:
        """Ends the workers; returns their last reports."""
        self._control.end()
        self._wake_all()
        for thread in self._threads:
            thread.join()
        self._processes.end(GRACE_S)
        for report in self._processes.take_reports():
            self._reports.put(report)
        with self._taking:
            return self._batch(None)

    def _batch(self, payload: Payload | None) -> Batch:
        batch = Batch(
            number=self._num_batches,
            payload=payload,
            collected={worker_idx: self._control.collected_steps(worker_idx) for worker_idx in self._workers},
            has_finished_episode=self._control.has_finished_episode,
            reports=[self._with_dropped(self._reports.get()) for _ in range(self._reports.qsize())],
            failure=self._failure,
        )
        self._num_batches += 1
        return batch

    def _with_dropped(self, report: Report) -> Report:
        """Adds samples that were lost with workers of this pool to the next report of a worker."""
        dropped = self._sender.dropped_samples - self._dropped_reported
        if dropped == 0 or not isinstance(report, RolloutReport):
            return report
        self._dropped_reported += dropped
        failures = dataclasses.replace(report.failures, num_dropped=report.failures.num_dropped + dropped)
        return dataclasses.replace(report, failures=failures)

    def _wake_all(self) -> None:
        for waker in (self._waker, *self._worker_wakers.values()):
            waker.wake()

    def _watch(self) -> None:
        """Restarts workers that died until the run ends."""
        try:
            while not self._control.ended:
                ended = self._processes.wait(WATCH_S)
                for report in self._processes.take_reports():
                    self._reports.put(report)
                self._restarts.handle_failures([child for child in ended if isinstance(child, ChildFailure)])
                self._restarts.update()
        except RunFailed as failure:
            self._failure = RunFailed(failure.summary, failure.details, failure.exit_code, is_final=True)
        except Exception as error:
            self._failure = explain("pool", error)


def worker_main(*args: Any) -> None:
    """The process of a rollout worker, which imports torch; the pool's does not."""
    from asyncrl.run.rollout_process import rollout_main

    rollout_main(*args)
