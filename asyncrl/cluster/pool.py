"""A pool: the rollout workers of one other machine, in an actor of Ray, with an arena of the layout of the learner's.

consumes  weights, grants of slots, messages to the environments (calls of the bridge)
produces  parcels: ready slots, reports, counts (answers to `take`)
waits     for ready slots, at most TAKE_S for each answer
stops     when the bridge closes it, or Ray ends the actor because the bridge has ended; its workers end with it

Slot n of the learner is slot n here, and split n is split n, so nothing is translated. The pool has a slot from the
grant until it has packed it: the grant is a credit of the learner's `SlotLedger`. A worker of the pool that dies is
restarted here, with the same slots, and the learner does not notice. This process needs no torch.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.control import RunControl, TrainingInfo
from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.cluster.parcels import PARCEL_BYTES, Parcel, SlotCodec
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.slot_ledger import Columns, SlotExchange, SlotLedger
from asyncrl.monitoring.reports import Report, RolloutReport
from asyncrl.run.restart_policy import RestartPolicy, WorkerSpec
from asyncrl.run.setup import RunSetup
from asyncrl.runtime.processes import ChildFailure, ProcessManager, RunFailed, explain, process_context
from asyncrl.runtime.torchrun import RankAddress

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
        arena: the arrays of the learner's arena.
        seed_steps: environment steps of the run so far, from which seeds are derived.
        has_finished_episode: whether an episode of the run was finished.
        training_info: what the environments are told; None if nothing was sent.
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


class CreditLedger(SlotLedger):
    """The slots that a pool has of the learner. Used under the lock of its `SlotExchange`.

    Attributes:
        publication: number of the newest weights that have arrived. A grant waits for those that it names, so whoever
            fills a slot acts with weights as new as on the learner's machine.
    """

    def __init__(self, slots: TrajectorySlots, plan: ResourcePlan, slot_bytes: int) -> None:
        super().__init__(slots, plan)
        self.publication = 0
        self._credits: deque[tuple[int, int, int]] = deque()
        self._most = max(1, PARCEL_BYTES // slot_bytes)

    def add_credit(self, publication: int, split_idx: int, slot: int) -> None:
        """Adds a granted slot, to be filled with weights at least as new as `publication`."""
        self._credits.append((publication, split_idx, slot))

    def add_ready(self, slot: int) -> None:
        self.ready.append(slot)

    def grant(self) -> list[tuple[int, int]]:
        grants = []
        while self._credits and self._credits[0][0] <= self.publication:
            _, split_idx, slot = self._credits.popleft()
            self._slots.grant(slot, split_idx)
            grants.append((split_idx, slot))
        return grants

    def take_dataset(self, learner_version: int) -> list[Columns] | None:
        """The slots of the next parcel; None if none is ready. `learner_version` is not used."""
        taken = [self.ready.popleft() for _ in range(min(len(self.ready), self._most))]
        for slot in taken:
            self._slots.take(slot)
        return [Columns(slot, 0, self._slots.num_envs, is_last=True) for slot in taken] or None

    def release(self, columns: list[Columns]) -> None:
        """Frees slots that were packed."""
        for part in columns:
            self._slots.free(part.slot)


class Pool:
    """The actor. Its methods may be called at the same time by several threads."""

    def __init__(self, start: PoolStart) -> None:
        """Starts the workers."""
        arena, plan, self._workers = Arena.create(start.arena), start.plan, start.workers
        slots = TrajectorySlots(arena)
        slots.reset()
        setup = RunSetup(start.config, plan, start.spec, arena, Path(), None, start.seed_steps, start.rank)
        self._control = setup.control
        self._control.has_finished_episode = start.has_finished_episode
        if start.training_info is not None:
            self.set_training_info(start.training_info)
        self._codec = SlotCodec(arena)
        self._channel = WeightsChannel(arena)
        self._ledger = CreditLedger(slots, plan, self._codec.slot_bytes)
        self._waker, nobody = Waker(), Waker()
        self._wakers = [self._waker, nobody, *(Waker() for _ in start.workers)]
        wakers = dict(zip(start.workers, self._wakers[2:], strict=True))
        self._exchange = SlotExchange(
            ledger=self._ledger,
            ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
            granted=[IndexRing(arena, f"granted.{worker_idx}") for worker_idx in range(plan.num_workers)],
            workers=[wakers.get(worker_idx, nobody) for worker_idx in range(plan.num_workers)],
            splits_per_worker=plan.worker_num_splits,
            worker_deaths=setup.worker_deaths,
        )
        self._taking, self._num_parcels, self._dropped_reported = threading.Lock(), 0, 0
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._failure: RunFailed | None = None
        # Children would import the script of Ray's worker process as their main module.
        sys.modules["__main__"] = ModuleType("__main__")
        self._processes = ProcessManager(process_context(), lambda name: _OUTPUT)
        specs = [
            WorkerSpec(f"rollout-{idx}", worker_main, (idx, waker, [self._waker], None), (idx,))
            for idx, waker in wakers.items()
        ]
        self._restarts = RestartPolicy(self._processes, setup, specs, self._wake_all, self._reports.put)
        self._threads = [
            threading.Thread(target=self._exchange.serve, args=(self._waker, self._control), daemon=True),
            threading.Thread(target=self._watch, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def publish(self, number: int, version: int, env_steps: int, block: npt.NDArray[np.float32]) -> float:
        """Passes the learner's publication `number` on to the workers; returns this machine's time."""
        self._channel.publish(block, version, env_steps)
        self._ledger.publication = number
        self._waker.wake()
        return time.monotonic()

    def grant(self, publication: int, grants: Sequence[tuple[int, int]], has_finished_episode: bool) -> float:
        """Grants (split, slot) to splits, for these weights or newer ones; returns this machine's time.

        `has_finished_episode` says whether any environment of the run has.
        """
        if has_finished_episode:
            self._control.has_finished_episode = True
        for split_idx, slot in grants:
            self._ledger.add_credit(publication, split_idx, slot)
        self._waker.wake()
        return time.monotonic()

    def set_training_info(self, info: TrainingInfo) -> float:
        """Passes on what the environments are told; returns this machine's time."""
        self._control.send_training_info(RunControl.pack_training_info(info))
        return time.monotonic()

    def take(self) -> Parcel:
        """Waits for ready slots, at most `TAKE_S`, and returns them. Calls are answered one after the other."""
        with self._taking:
            columns: list[Columns] = []
            if self._failure is None and not self._control.ended:
                columns = self._exchange.take_dataset(0, TAKE_S) or []
            slots = [part.slot for part in columns]
            content = self._codec.pack(slots)
            if columns:
                self._exchange.release(columns)
            return self._parcel(slots, content)

    def close(self) -> Parcel:
        """Ends the workers; returns their last reports."""
        self._control.end()
        self._wake_all()
        for thread in self._threads:
            thread.join()
        self._processes.end(GRACE_S)
        for report in self._processes.take_reports():
            self._reports.put(report)
        with self._taking:
            return self._parcel([], self._codec.pack([]))

    def _parcel(self, slots: Sequence[int], content: npt.NDArray[np.uint8]) -> Parcel:
        parcel = Parcel(
            number=self._num_parcels,
            slots=slots,
            content=content,
            collected={worker_idx: self._control.collected_steps(worker_idx) for worker_idx in self._workers},
            has_finished_episode=self._control.has_finished_episode,
            reports=[self._with_dropped(self._reports.get()) for _ in range(self._reports.qsize())],
            failure=self._failure,
        )
        self._num_parcels += 1
        return parcel

    def _with_dropped(self, report: Report) -> Report:
        """Adds samples that were lost with workers of this pool to the next report of a worker."""
        dropped = self._ledger.dropped_samples - self._dropped_reported
        if dropped == 0 or not isinstance(report, RolloutReport):
            return report
        self._dropped_reported += dropped
        failures = dataclasses.replace(report.failures, num_dropped=report.failures.num_dropped + dropped)
        return dataclasses.replace(report, failures=failures)

    def _wake_all(self) -> None:
        for waker in self._wakers:
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
