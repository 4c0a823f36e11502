"""Decides what happens when a process of a run ends, and which processes are restarted.

    rollout, inference worker   it raised before any episode was finished: the user's code is broken, the run fails
                                it raised later, died or hung: it is restarted, until the restarts are used up
    learner                     the run fails; `asyncrl.train` decides whether to resume from its checkpoint
    evaluation                  reported, and training continues

Before a process is restarted, it is certainly dead, and the state that it left is cleaned up
(`asyncrl.buffers.control`). A worker hangs if it neither steps nor waits. Only the runner decides; it reads process
sentinels and words of the arena, and sends no requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.monitoring.reports import Report, RestartReport
from asyncrl.run.setup import RunSetup
from asyncrl.runtime.processes import EXIT_FAILED_TOO_OFTEN, ChildFailure, LearnerDied, ProcessManager, RunFailed, title
from asyncrl.runtime.restarts import HangDetector, RestartBudget

START_TIMEOUT_S = 120.0  # until a worker has made its environments and looked around once
SETTLE_TIMEOUT_S = 60.0
SAME_FAILURE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSpec:
    """A process that may be restarted.

    Attributes:
        name: the child's, and its log file's.
        target: called in the process with the run's setup and `args`.
        args: further arguments of the target.
        worker_idx: of a rollout worker; None for an inference worker, whose death leaves nothing to clean up.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    worker_idx: int | None = None


@dataclass(frozen=True)
class _Pending:
    """A worker whose process has ended: when it may be started again, and until when it has to be."""

    worker: WorkerSpec
    due_at: float
    deadline: float


class RestartPolicy:
    """Starts rollout and inference workers, and starts them again."""

    def __init__(
        self,
        supervisor: ProcessManager,
        setup: RunSetup,
        workers: Sequence[WorkerSpec],
        wake_all: Callable[[], None],
        send: Callable[[Report], None],
    ) -> None:
        """Starts every worker.

        Args:
            supervisor: has the processes.
            setup: the run.
            workers: who is started, and may be started again.
            wake_all: wakes everyone who may have to settle a death.
            send: takes reports.
        """
        config = setup.config
        self._supervisor = supervisor
        self._setup = setup
        self._workers = {worker.name: worker for worker in workers}
        self._wake_all = wake_all
        self._send = send
        self._budget = RestartBudget(config.max_restarts, config.restart_window_s)
        self._hangs = HangDetector(config.env_step_timeout, START_TIMEOUT_S)
        self._worker_deaths = setup.worker_deaths
        self._pending: list[_Pending] = []
        self._failures: list[ChildFailure] = []
        for worker in workers:
            self._start(worker, setup)

    def take(self, failures: Sequence[ChildFailure]) -> None:
        """Decides what becomes of processes that have ended.

        Raises:
            RunFailed: the run cannot continue.
        """
        fatal = [failure for failure in failures if self._is_fatal(failure)]
        if fatal and fatal[0].child not in self._workers:
            raise (LearnerDied if fatal[0].is_death else RunFailed)(fatal[0].summary, fatal[0].details)
        if fatal:
            raise joint_failure(fatal + self._more_failures(len(fatal)))
        for failure in failures:
            if self._is_ending:
                log.warning("%s while the run was ending", failure.summary)
            else:
                self._restart(failure, time.monotonic())

    def look(self) -> None:
        """Starts who is due, and kills who hangs; called again and again.

        Raises:
            RunFailed: a process can't be started, or what a dead one left is not settled in time.
        """
        now = time.monotonic()
        if self._is_ending:
            return
        for pending in list(self._pending):
            worker_idx = pending.worker.worker_idx
            is_settled = worker_idx is None or self._worker_deaths.is_acknowledged(worker_idx)
            if now >= pending.due_at and is_settled:
                self._pending.remove(pending)
                self._start(pending.worker, self._setup.for_restart())
            elif now >= pending.deadline:
                raise RunFailed(
                    f"{title(pending.worker.name)} could not be started again: other processes did not release its "
                    f"buffers within {SETTLE_TIMEOUT_S:g} s"
                )
        self._kill_who_hangs(now)

    def _start(self, worker: WorkerSpec, setup: RunSetup) -> None:
        if worker.worker_idx is not None:
            self._hangs.note_start(worker.name, self._setup.control.progress(worker.worker_idx))
        self._supervisor.start(worker.name, worker.target, setup, *worker.args)

    @property
    def _is_ending(self) -> bool:
        return self._setup.control.stop_requested or self._setup.control.ended

    def _is_fatal(self, failure: ChildFailure) -> bool:
        if failure.child not in self._workers:
            return True
        if self._is_ending:
            return False  # an environment's own processes may have got the Ctrl-C that ends the run
        has_raised_early = not failure.is_death and not self._setup.control.has_finished_episode
        return has_raised_early or failure.is_final

    def _more_failures(self, num_failed: int) -> list[ChildFailure]:
        """Waits a moment for other workers that fail in the same way."""
        more: list[ChildFailure] = []
        deadline = time.monotonic() + SAME_FAILURE_S
        while num_failed + len(more) < len(self._workers) and (left_s := deadline - time.monotonic()) > 0.0:
            more += [each for each in self._supervisor.wait(left_s) if isinstance(each, ChildFailure)]
        return more

    def _restart(self, failure: ChildFailure, now: float) -> None:
        worker, config = self._workers[failure.child], self._setup.config
        if not self._supervisor.bury(worker.name):
            raise RunFailed(f"{failure.summary}, but its process does not end", failure.details)
        self._failures.append(failure)
        delay_s = self._budget.take(worker.name, now)
        if delay_s is None:
            raise self._used_up()
        if worker.worker_idx is not None:
            self._worker_deaths.announce(worker.worker_idx)
            self._wake_all()
        self._pending.append(_Pending(worker, now + delay_s, now + delay_s + SETTLE_TIMEOUT_S))
        allowed = f"restart {self._budget.num_taken} of at most {config.max_restarts} in {config.restart_window_s:g} s"
        self._send(RestartReport(worker.name, f"{failure.summary}; it is started again ({allowed})"))

    def _used_up(self) -> RunFailed:
        first, last = self._failures[0], self._failures[-1]
        limits = f"max_restarts={self._setup.config.max_restarts} in {self._setup.config.restart_window_s:g} s"
        summary = f"the restarts are used up ({limits}); first: {first.summary}; last: {last.summary}"
        parts = [f"{when}: {each.details}" for when, each in (("first", first), ("last", last)) if each.details]
        return RunFailed(summary, "\n\n".join(parts), EXIT_FAILED_TOO_OFTEN)

    def _kill_who_hangs(self, now: float) -> None:
        running = set(self._supervisor.running)
        progress = {
            name: self._setup.control.progress(worker.worker_idx)
            for name, worker in self._workers.items()
            if worker.worker_idx is not None and name in running
        }
        for name in self._hangs.find_hung(progress, now):
            timeout_s = self._setup.config.env_step_timeout
            self._supervisor.kill_hung(
                name,
                f"made no environment step for {timeout_s:g} s and was killed (--env_step_timeout); its Python stack "
                "is in its log",
            )


def joint_failure(failures: Sequence[ChildFailure]) -> RunFailed:
    """The failure of a run of which several processes failed: the first one's, and how many failed in the same way."""
    first = failures[0]
    last_line = _last_line(first)
    same = sum(_last_line(failure) == last_line for failure in failures)
    counted = f" ({same} workers failed the same way)" if same > 1 else ""
    return RunFailed(first.summary + counted, first.details, first.exit_code)


def _last_line(failure: ChildFailure) -> str:
    return failure.details.rstrip().rpartition("\n")[2]
