"""Runs what `asyncrl.run.build_roles` builds: all roles in one process (serial), or each in its own (parallel)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Protocol

import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import Waker
from asyncrl.evaluation.worker import POLL_S, EvaluationWorker
from asyncrl.learner.worker import LearnerOutcome
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.monitoring.reports import EvaluationFailed, Report
from asyncrl.rollout.failures import EnvironmentsKeepFailing, EnvironmentTrouble
from asyncrl.run.build_roles import (
    build_evaluation_worker,
    build_inference_worker,
    build_learner,
    build_rollout_worker,
    build_serial,
)
from asyncrl.run.setup import RunSetup
from asyncrl.run.supervision import RestartPolicy, WorkerSpec
from asyncrl.runtime.processes import EXIT_FAILED_TOO_OFTEN, ChildFailure, ChildResult, ProcessManager, RunFailed
from asyncrl.runtime.reporting import ReportSender
from asyncrl.runtime.signals import StopAtOnce

REPORT_EVERY_S = 1.0
WATCH_S = 0.2
GRACE_S = 4.0
ROLLOUT_NICENESS = (
    10  # on full cores learner and inference workers go first: others wait for that, nobody for one worker
)
EVALUATION_NICENESS = 15  # a third of a worker's share where cores are full
LAST_EVALUATION_S = 900.0
LEARNER = "learner"
EVALUATION = "evaluation"

Send = Callable[[Report], None]
Turn = Callable[[RunControl], bool]
"""Called again and again with the run's words; returns whether the run is to finish."""

log = logging.getLogger(__name__)


def run_serial(setup: RunSetup, send: Send, turn: Turn) -> LearnerOutcome:
    """All roles in this process, in a fixed order.

    With `checkpoint_resets` the run goes on from each checkpoint as a resumed run does, everything recreated; so one
    that is resumed from it repeats it to the bit.

    Args:
        setup: the run.
        send: takes the roles' reports.
        turn: called again and again; returns whether the run is to finish.
    """
    part = setup
    try:
        result = _run_serial_part(part, send, turn)
        while isinstance(result, Path):
            pending, info = part.control.take_hyperparameters(), part.control.newest_training_info
            part.arena.close()  # each part has one of its own
            part = setup.continued(result)
            if pending is not None:
                part.control.set_hyperparameters(pending)
            if info is not None:
                part.control.send_training_info(RunControl.pack_training_info(info))
            result = _run_serial_part(part, send, turn)
        return result
    finally:
        part.arena.close()


def _run_serial_part(setup: RunSetup, send: Send, turn: Turn) -> LearnerOutcome | Path:
    """Runs to the end, or to the checkpoint that is returned."""
    torch.set_num_threads(setup.plan.learner_threads)
    control, waker = setup.control, Waker()

    def look() -> None:
        if turn(control):
            control.request_stop()

    learner, exchange, workers = build_serial(setup, waker, look)
    evaluation: EvaluationWorker | None = None

    def evaluate_if_due() -> None:
        nonlocal evaluation
        if evaluation is None and (setup.config.eval_every_env_steps is not None or control.num_evaluations > 0):
            evaluation = build_evaluation_worker(setup)
        if evaluation is not None and evaluation.is_due and not control.stop_requested:
            for report in evaluation.run(look):
                send(report)

    try:
        boundary: Path | None = None
        while not learner.is_over and boundary is None:
            if exchange is not None:
                exchange.poll()
            try:
                for worker in workers:
                    with _environment_errors(worker.worker_idx):
                        worker.take_training_info()
                        worker.poll()
                    _report_if_due(worker, send)
            except RunFailed:
                control.request_stop()
                learner.finish(send)
                raise
            saved = learner.advance(0.0, send)
            look()
            evaluate_if_due()
            if setup.config.checkpoint_resets and saved is not None and saved.error is None and not learner.is_over:
                boundary = Path(saved.path)
        for worker in workers:
            send(worker.report())
        if boundary is not None:
            learner.save_best_if_asked(send)
            return boundary
        outcome = learner.finish(send)
        control.end()
        evaluate_if_due()
        return outcome
    finally:
        for worker in workers:
            worker.close()
        waker.close()


def run_parallel(
    setup: RunSetup, context: BaseContext, log_path: Callable[[str], Path], send: Send, turn: Turn
) -> LearnerOutcome:
    """Each role in its own process, watched from here until training is over.

    Args:
        setup: the run.
        context: start method of the processes.
        log_path: gives the log file of a role.
        send: takes the roles' reports.
        turn: called again and again; returns whether the run is to finish.

    Raises:
        RunFailed: the run cannot go on without a role that failed. The learner has saved before, if it could.
    """
    supervisor = ProcessManager(context, log_path)
    plan, control = setup.plan, setup.control
    learner_waker = Waker()
    workers = [Waker() for _ in range(plan.num_workers)]
    servers = [Waker() for _ in range(plan.num_inference_workers)]
    everyone = [learner_waker, *workers, *servers]

    def wake_all() -> None:
        for waker in everyone:
            waker.wake()

    grace_s = GRACE_S
    try:
        supervisor.start(LEARNER, _learner_main, setup, learner_waker, [*workers, *servers])
        specs = [
            WorkerSpec(f"inference-{server_idx}", _inference_main, (server_idx, waker, workers))
            for server_idx, waker in enumerate(servers)
        ]
        for worker_idx, waker in enumerate(workers):
            server = servers[setup.server_of(worker_idx)] if servers else None
            args = (worker_idx, waker, learner_waker, server)
            specs.append(WorkerSpec(f"rollout-{worker_idx}", _rollout_main, args, worker_idx))
        supervision = RestartPolicy(supervisor, setup, specs, wake_all, send)
        evaluation = _EvaluationProcess(supervisor, setup)
        try:
            outcome = _watch(supervisor, supervision, evaluation, control, learner_waker, send, turn)
        except RunFailed:
            _let_learner_save(supervisor, control, learner_waker)
            raise
        _await_last_evaluation(supervisor, control, send, turn)
        return outcome
    except StopAtOnce:
        grace_s = 0.0
        raise
    finally:
        control.request_stop()
        control.end()
        wake_all()
        for name in supervisor.end(grace_s):
            if grace_s > 0.0:
                log.warning("%s did not end within %g s and was killed", name, grace_s)
        for report in supervisor.take_reports():
            send(report)
        for waker in everyone:
            waker.close()


class _EvaluationProcess:
    """The process that evaluates: it runs all along, or from the first time that an observer asks for it."""

    def __init__(self, supervisor: ProcessManager, setup: RunSetup) -> None:
        self._supervisor, self._setup = supervisor, setup
        self._has_ended = False
        self._num_asked = 0
        if setup.config.eval_every_env_steps is not None:
            supervisor.start(EVALUATION, _evaluation_main, setup)

    def note_end(self) -> None:
        """It has failed; the next request starts another one."""
        self._has_ended = True

    def start_if_asked(self) -> None:
        """Starts it if an observer has asked for an evaluation since the last call, and it does not run."""
        num_asked = self._setup.control.num_evaluations
        if num_asked > self._num_asked and EVALUATION not in self._supervisor.running:
            if self._has_ended:
                self._supervisor.bury(EVALUATION)
                self._has_ended = False
            self._supervisor.start(EVALUATION, _evaluation_main, self._setup)
        self._num_asked = num_asked


def _watch(
    supervisor: ProcessManager,
    supervision: RestartPolicy,
    evaluation: _EvaluationProcess,
    control: RunControl,
    learner: Waker,
    send: Send,
    turn: Turn,
) -> LearnerOutcome:
    while True:
        outcomes = supervisor.wait(WATCH_S)
        for report in supervisor.take_reports():
            send(report)
        failures = [outcome for outcome in outcomes if isinstance(outcome, ChildFailure)]
        for failure in [failure for failure in failures if failure.child == EVALUATION]:
            failures.remove(failure)
            evaluation.note_end()
            send(EvaluationFailed(failure.summary))
        supervision.take(failures)
        supervision.look()
        for outcome in outcomes:
            if isinstance(outcome, ChildResult) and isinstance(outcome.value, LearnerOutcome):
                return outcome.value
        if turn(control) and not control.stop_requested:
            control.request_stop()
            learner.wake()
        evaluation.start_if_asked()


def _await_last_evaluation(supervisor: ProcessManager, control: RunControl, send: Send, turn: Turn) -> None:
    """Lets the evaluation of the trained policy end, unless the user wants the run to."""
    deadline = time.monotonic() + LAST_EVALUATION_S
    while EVALUATION in supervisor.running and not control.stop_requested and time.monotonic() < deadline:
        outcomes = supervisor.wait(WATCH_S)
        for report in supervisor.take_reports():
            send(report)
        for outcome in outcomes:
            if isinstance(outcome, ChildFailure) and outcome.child == EVALUATION:
                send(EvaluationFailed(outcome.summary))
        if turn(control):
            control.request_stop()
    if EVALUATION in supervisor.running and not control.stop_requested:
        send(EvaluationFailed(f"the last evaluation took longer than {LAST_EVALUATION_S:g} s"))


def _let_learner_save(supervisor: ProcessManager, control: RunControl, learner: Waker) -> None:
    """Asks the learner to end as at Ctrl-C, before a failure ends the run."""
    if LEARNER in supervisor.running:
        control.request_stop()
        learner.wake()
        supervisor.wait_for(LEARNER, GRACE_S)


@contextlib.contextmanager
def _environment_errors(worker_idx: int) -> Iterator[None]:
    """Says where an environment's exception came from, and keeps only the environment's own traceback."""
    try:
        yield
    except EnvironmentTrouble as error:
        raise RunFailed(f"rollout worker {worker_idx}: {error}", error.traceback, is_final=True) from error
    except EnvironmentsKeepFailing as error:
        raise RunFailed(str(error), error.tracebacks, EXIT_FAILED_TOO_OFTEN, is_final=True) from error


class _Role(Protocol):
    """What a rollout and an inference worker have in common."""

    def poll(self) -> float:
        """Does what can be done; returns for how long to wait, unless woken, before the next time."""

    @property
    def phases(self) -> PhaseTimer:
        """Where its time goes."""

    @property
    def waiting_for(self) -> Phase:
        """What it waits for."""

    def report(self) -> Report:
        """What was done since the last report."""

    @property
    def report_age_s(self) -> float:
        """Seconds since the last report."""

    def close(self) -> None:
        """Gives everything back."""


def _report_if_due(role: _Role, send: Send) -> None:
    if role.report_age_s >= REPORT_EVERY_S:
        send(role.report())


def _serve(
    role: _Role, waker: Waker, control: RunControl, send: Send, note_turn: Callable[[], None] | None = None
) -> None:
    log.info("at work")
    try:
        role.phases.restart()
        while not control.ended:
            wait_s = role.poll()
            if note_turn is not None:
                note_turn()
            if wait_s > 0.0:
                waker.wait(wait_s)
                role.phases.charge(role.waiting_for)
            _report_if_due(role, send)
        send(role.report())
    finally:
        role.close()


def _rollout_main(
    setup: RunSetup, worker_idx: int, waker: Waker, learner: Waker, server: Waker | None, reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    os.nice(ROLLOUT_NICENESS)
    with _environment_errors(worker_idx):
        worker = build_rollout_worker(setup, worker_idx, learner, server)
        control = setup.control

        def note_turn() -> None:
            control.count_turn(worker_idx)
            worker.take_training_info()

        _serve(worker, waker, control, reports.send, note_turn)


def _inference_main(
    setup: RunSetup, server_idx: int, waker: Waker, workers: Sequence[Waker], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    worker = build_inference_worker(setup, server_idx, workers)
    _serve(worker, waker, setup.control, reports.send)


def _evaluation_main(setup: RunSetup, reports: ReportSender) -> None:
    torch.set_num_threads(1)
    os.nice(EVALUATION_NICENESS)
    evaluation = build_evaluation_worker(setup)
    while not evaluation.is_over:
        if evaluation.is_due:
            for report in evaluation.run():
                reports.send(report)
        else:
            time.sleep(POLL_S)


def _learner_main(setup: RunSetup, waker: Waker, everyone: Sequence[Waker], reports: ReportSender) -> LearnerOutcome:
    torch.set_num_threads(setup.plan.learner_threads)
    control = setup.control
    learner, exchange = build_learner(setup, waker, everyone[: setup.plan.num_workers])
    exchange_thread: threading.Thread | None = None
    if exchange is not None:
        exchange_thread = threading.Thread(
            target=exchange.serve, args=(waker, control), name="slot exchange", daemon=True
        )
        exchange_thread.start()
    log.info("at work")
    try:
        while not learner.is_over:
            learner.advance(0.1, reports.send)
        return learner.finish(reports.send)
    finally:
        control.end()
        for other in [waker, *everyone]:
            other.wake()
        if exchange_thread is not None:
            exchange_thread.join(5.0)
