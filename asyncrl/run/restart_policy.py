"""Decides what happens when a process of a run ends, and restarts rollout and inference workers.

    rollout, inference worker   it raised before the first finished episode: the user's code is broken, the run fails
                                its networks or an update raised: the run fails
                                it died, hung, or could not make its environments again: it is restarted, at most
                                `max_restarts` times
    learner                     the run fails; `asyncrl.run.session` decides whether to resume from its checkpoint
    evaluation                  the runner reports it, and training continues

A process is restarted after it has certainly ended and the state that it left is cleaned up
(`asyncrl.buffers.control`). A worker hangs if it neither steps nor waits. Only the runner decides; it reads process
sentinels and words of the arena, and sends no requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.observers.reports import Report, RestartReport
from asyncrl.processes.children import (
    EXIT_FAILED_TOO_OFTEN,
    ChildFailure,
    LearnerDied,
    ProcessManager,
    RunFailed,
    title,
)
from asyncrl.processes.restarts import HangDetector, RestartBudget
from asyncrl.run.setup import RunSetup

CLEAN_UP_TIMEOUT_S = 60.0
_LONGEST_COUNTED_S = 1.0  # between two calls of `update`: while this process is stopped, others may be, too
SAME_FAILURE_S = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSpec:
    """A process that may be restarted.

    Attributes:
        name: name of the child and of its log file.
        target: called in the process with the run's setup and `args`.
        args: further arguments of the target.
        workers: indices of the rollout workers that end with it: one, or those of a pool on another machine. An
            inference worker has none, and leaves no state to clean up.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    workers: Sequence[int] = ()


class RestartPolicy:
    """Starts rollout and inference workers, and restarts them."""

    def __init__(
        self,
        processes: ProcessManager,
        setup: RunSetup,
        workers: Sequence[WorkerSpec],
        wake_all: Callable[[], None],
        send: Callable[[Report], None],
    ) -> None:
        """Starts every worker.

        Args:
            processes: owns the processes.
            setup: the run.
            workers: the processes to start, and to restart.
            wake_all: wakes all roles that may have to clean up after a dead worker.
            send: receives reports.
        """
        config = setup.config
        self._processes = processes
        self._setup = setup
        self._control = setup.control
        self._workers = {worker.name: worker for worker in workers}
        self._wake_all = wake_all
        self._send = send
        self._budget = RestartBudget(config.max_restarts, config.restart_window_s)
        self._hangs = HangDetector(config.env_step_timeout, config.env_start_timeout)
        self._steps_at_start: dict[str, int] = {}
        self._worker_deaths = setup.worker_deaths
        self._due_at: dict[str, float] = {}  # of workers that wait for their restart
        self._overdue_s: dict[str, float] = {}  # how long others have not cleaned up after them
        self._updated_at = time.monotonic()
        self._clean_up_timeout_s = CLEAN_UP_TIMEOUT_S
        if setup.rank is not None:  # its learner begins when the environments of all ranks have started
            self._clean_up_timeout_s += config.env_start_timeout
        self._failures: list[ChildFailure] = []
        for worker in workers:
            self._start(worker, setup)

    def handle_failures(self, failures: Sequence[ChildFailure]) -> None:
        """Schedules a restart for each process that has ended.

        Raises:
            RunFailed: the run cannot continue.
        """
        fatal = [failure for failure in failures if self._is_fatal(failure)]
        if fatal and fatal[0].child not in self._workers:
            raise (LearnerDied if fatal[0].is_death else RunFailed)(fatal[0].summary, fatal[0].details)
        if fatal:
            # Other workers may fail in the same way in the next moment.
            deadline = time.monotonic() + SAME_FAILURE_S
            while len(fatal) < len(self._workers) and (left_s := deadline - time.monotonic()) > 0.0:
                fatal += [each for each in self._processes.wait(left_s) if isinstance(each, ChildFailure)]
            raise _joint_failure(fatal)
        for failure in failures:
            if self._is_ending:
                log.warning("%s while the run was ending", failure.summary)
            else:
                self._schedule_restart(failure, time.monotonic())

    def update(self) -> None:
        """Restarts workers that are due and kills workers that hang; called repeatedly.

        Raises:
            RunFailed: a process cannot be started, or the state of a dead one is not cleaned up in time.
        """
        if self._is_ending:
            return
        now = time.monotonic()
        counted_s, self._updated_at = min(now - self._updated_at, _LONGEST_COUNTED_S), now
        for name, due_at in list(self._due_at.items()):
            worker = self._workers[name]
            is_clean = all(map(self._worker_deaths.is_acknowledged, worker.workers))
            if now < due_at:
                continue
            if is_clean:
                del self._due_at[name], self._overdue_s[name]
                number = sum(failure.child == name for failure in self._failures)
                self._start(worker, self._setup.for_restart(number))
                continue
            self._overdue_s[name] += counted_s
            if self._overdue_s[name] >= self._clean_up_timeout_s:
                raise RunFailed(
                    f"{title(name)} could not be started again: other processes did not release its "
                    f"buffers within {self._clean_up_timeout_s:g} s"
                )
        running = set(self._processes.running)
        progress = {
            name: self._control.progress(worker.workers[0])
            for name, worker in self._workers.items()
            if worker.workers and name in running
        }
        begun = {name for name in progress if self._steps_of(self._workers[name]) > self._steps_at_start[name]}
        for name, limit_s in self._hangs.find_hung(progress, begun, now).items():
            text, setting, config = "made no environment step", "env_step_timeout", self._setup.config
            if name not in begun:
                text = "has not stepped, and has neither made nor reset an environment"
                setting = "env_start_timeout" if limit_s == config.env_start_timeout else setting
            text = f"{text} for {limit_s:g} s and was killed (--{setting}); its Python stack is in its log"
            self._processes.kill_hung(name, text)

    def _start(self, worker: WorkerSpec, setup: RunSetup) -> None:
        if worker.workers:
            self._hangs.record_start(worker.name, self._control.progress(worker.workers[0]))
            self._steps_at_start[worker.name] = self._steps_of(worker)
        self._processes.start(worker.name, worker.target, setup, *worker.args)

    def _steps_of(self, worker: WorkerSpec) -> int:
        return sum(map(self._control.collected_steps, worker.workers))

    @property
    def _is_ending(self) -> bool:
        return self._control.stop_requested or self._control.ended

    def _is_fatal(self, failure: ChildFailure) -> bool:
        if failure.child not in self._workers:
            return True
        if self._is_ending:
            return False  # an environment's own processes may have received the Ctrl-C that ends the run
        has_raised_early = not failure.is_death and not self._control.has_finished_episode
        return has_raised_early or failure.is_final

    def _schedule_restart(self, failure: ChildFailure, now: float) -> None:
        worker, config = self._workers[failure.child], self._setup.config
        if not self._processes.reap(worker.name):
            raise RunFailed(f"{failure.summary}, but its process does not end", failure.details)
        self._failures.append(failure)
        delay_s = self._budget.take(worker.name, now)
        if delay_s is None:
            first, last = self._failures[0], self._failures[-1]
            limits = f"max_restarts={config.max_restarts} in {config.restart_window_s:g} s"
            summary = f"the restarts are used up ({limits}); first: {first.summary}; last: {last.summary}"
            parts = [f"{when}: {each.details}" for when, each in (("first", first), ("last", last)) if each.details]
            raise RunFailed(summary, "\n\n".join(parts), EXIT_FAILED_TOO_OFTEN)
        for worker_idx in worker.workers:
            self._worker_deaths.announce(worker_idx)
        if worker.workers:
            self._wake_all()
        self._due_at[worker.name], self._overdue_s[worker.name] = now + delay_s, 0.0
        allowed = f"restart {self._budget.num_taken} of at most {config.max_restarts} in {config.restart_window_s:g} s"
        self._send(RestartReport(worker.name, f"{failure.summary}; it is restarted ({allowed})"))


def _joint_failure(failures: Sequence[ChildFailure]) -> RunFailed:
    """The failure of a run in which several processes failed: the first one, and how many failed in the same way."""
    first = failures[0]
    last_lines = [failure.details.rstrip().rpartition("\n")[2] for failure in failures]
    same = last_lines.count(last_lines[0])
    counted = f" ({same} workers failed the same way)" if same > 1 else ""
    return RunFailed(first.summary + counted, first.details, first.exit_code)
