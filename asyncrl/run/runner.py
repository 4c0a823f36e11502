"""Runs the roles that `asyncrl.run.build_roles` builds: all in one process (serial), or each in its own (parallel).

    run_serial      one loop: rollout workers, learner, evaluation, one after the other
    run_parallel    starts a process for each role, watches them until the learner has ended, then ends all
    _inference_main, _evaluation_main, _learner_main    the loops of these processes; videos have one of their own,
                                                        with the evaluation's loop. Those of rollout workers and of
                                                        pools are in `rollout_process` and `asyncrl.cluster.bridge`

Both modes take the same two callbacks: `send` receives the reports of all roles, and `steer` controls the run between
two waits: it shows progress, passes on requests of observers, and requests a stop.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path

import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.cluster.bridge import pool_main
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import POLL_S, EvaluationWorker
from asyncrl.learner.worker import LearnerOutcome, joint_outcome
from asyncrl.monitoring.reports import EvaluationFailed, Report, VideoReport
from asyncrl.rollout.failures import EnvironmentsKeepFailing, EnvironmentTrouble
from asyncrl.run.build_roles import (
    build_evaluation_workers,
    build_inference_worker,
    build_learner,
    build_serial,
    build_video_workers,
)
from asyncrl.run.restart_policy import RestartPolicy, WorkerSpec
from asyncrl.run.rollout_process import REPORT_EVERY_S, environment_failure, rollout_main
from asyncrl.run.setup import RunSetup
from asyncrl.runtime.processes import ChildFailure, ProcessManager, RunFailed, allow_descriptors
from asyncrl.runtime.reporting import ReportSender
from asyncrl.runtime.run_folder import VIDEOS
from asyncrl.runtime.signals import StopAtOnce

WATCH_S = 0.2
GRACE_S = 4.0
SAVE_S = 300.0
"""How long learners may take to finish a step and to save when the run has failed."""
_DESCRIPTORS, _DESCRIPTORS_OF_CHILD = 256, 10
"""Of this process: files of modules, environments and the user; pipes, wakers and the log of each child."""
EVALUATION_NICENESS = 15  # a third of a worker's share if all cores are busy
LAST_EVALUATION_S = 900.0
LEARNER = "learner"
EVALUATION = "evaluation"

Send = Callable[[Report], None]
ControlCallback = Callable[[RunControl], None]
"""Called a few times a second with the words of the run, in which it may request a stop and more."""

log = logging.getLogger(__name__)


def run_serial(setup: RunSetup, send: Send, steer: ControlCallback) -> LearnerOutcome:
    """Runs all roles in this process, in a fixed order.

    With `checkpoint_resets` everything is recreated at each checkpoint, as for a resumed run, so that a run resumed
    from there repeats this one to the bit.

    Args:
        setup: the run; its arena is closed at the end.
        send: receives the roles' reports.
        steer: called in each iteration, and a few times a second during an update.

    Raises:
        RunFailed: an environment failed. The learner has saved.
    """
    part = setup
    failed_videos: list[VideoReport] = []
    try:
        result = _run_serial_part(part, send, steer, failed_videos)
        while isinstance(result, Path):
            pending, info = part.control.take_change(), part.control.newest_training_info
            part.arena.free()  # before the memory of the next part is taken
            part = RunSetup.create(setup.config, setup.plan, setup.spec, setup.checkpoints, result)
            if pending is not None:
                part.control.send_change(pending)
            if info is not None:
                part.control.send_training_info(RunControl.pack_training_info(info))
            result = _run_serial_part(part, send, steer, failed_videos)
        return result
    finally:
        part.arena.close()


def _run_serial_part(
    setup: RunSetup, send: Send, steer: ControlCallback, failed_videos: list[VideoReport]
) -> LearnerOutcome | Path:
    """Runs to the end, or with `checkpoint_resets` to the next checkpoint, whose path is returned.

    Videos that fail are added to `failed_videos`; once there are some, no others are made.
    """
    torch.set_num_threads(setup.plan.learner_threads)
    config, control, waker = setup.config, setup.control, Waker()
    steer_run = functools.partial(steer, control)
    learners, exchanges, workers, evaluations = build_serial(setup, waker, steer_run)
    videos = [] if failed_videos else build_video_workers(setup)
    reset_at: Path | None = None
    outcome: LearnerOutcome | None = None
    try:
        while True:
            active = [learner for learner in learners if not learner.is_over]
            if not active:
                for worker in workers:
                    send(worker.report())
                outcome = joint_outcome([learner.finish(send) for learner in learners])
                control.end()
            else:
                for exchange in exchanges:
                    exchange.poll()
                try:
                    for worker in workers:
                        if control.num_training_infos != worker.num_training_infos:
                            worker.take_training_info()
                        worker.poll()
                        if time.monotonic() - worker.report_started >= REPORT_EVERY_S:
                            send(worker.report())
                except (EnvironmentTrouble, EnvironmentsKeepFailing, RunFailed) as error:
                    control.request_stop()
                    for learner in learners:
                        learner.finish(send)
                    if isinstance(error, RunFailed):
                        raise
                    raise environment_failure(worker.worker_idx, error) from error
                for learner in active:
                    saved = learner.advance(0.0, send)
                    if config.checkpoint_resets and saved is not None and saved.error is None and not learner.is_over:
                        reset_at = Path(saved.path)
                steer(control)
            if not evaluations and control.num_evaluations > 0:
                evaluations = build_evaluation_workers(setup)
            for evaluation in (*evaluations, *videos):
                if evaluation.is_due and not control.stop_requested:
                    for report in evaluation.run(steer_run):
                        send(report)
                        if isinstance(report, VideoReport) and report.error is not None:
                            failed_videos.append(report)
            if outcome is not None:
                return outcome
            if reset_at is not None:
                for worker in workers:
                    send(worker.report())
                for learner in learners:
                    learner.save_best_if_asked(send)
                return reset_at
    finally:
        for worker in workers:
            worker.close()
        waker.close()


def run_parallel(
    setup: RunSetup, context: BaseContext, log_path: Callable[[str], Path], send: Send, steer: ControlCallback
) -> LearnerOutcome:
    """Runs each role in its own process and watches the processes until training has ended.

    Args:
        setup: the run.
        context: start method of the processes.
        log_path: maps the name of a role to its log file.
        send: receives the roles' reports.
        steer: called after each wait, every `WATCH_S` seconds or sooner.

    Raises:
        RunFailed: the run cannot continue without a role that failed. The learner has saved before, if it could.
    """
    config, plan, control = setup.config, setup.plan, setup.control
    allow_descriptors(_DESCRIPTORS + _DESCRIPTORS_OF_CHILD * plan.num_processes)
    processes = ProcessManager(context, log_path)
    names = [LEARNER] if plan.num_policies == 1 else [f"{LEARNER}-{idx}" for idx in range(plan.num_policies)]
    learner_wakers = {name: Waker() for name in names}
    local_wakers = [Waker() for _ in range(plan.num_local_workers)]
    host_wakers = [Waker() for _ in range(plan.num_remote_hosts)]
    server_wakers = [Waker() for _ in range(plan.num_inference_workers)]
    wakers = [*learner_wakers.values(), *local_wakers, *host_wakers, *server_wakers]
    worker_wakers = local_wakers + [waker for waker in host_wakers for _ in range(plan.num_workers_per_remote_host)]

    def wake_all() -> None:
        for waker in wakers:
            waker.wake()

    grace_s = GRACE_S
    try:
        for policy_idx, (name, waker) in enumerate(learner_wakers.items()):
            others = [*worker_wakers, *server_wakers]
            processes.start(name, _learner_main, setup.of_policy(policy_idx), waker, others)
        specs = [
            WorkerSpec(f"inference-{server_idx}", _inference_main, (server_idx, waker, worker_wakers))
            for server_idx, waker in enumerate(server_wakers)
        ]
        for worker_idx, waker in enumerate(local_wakers):
            server = server_wakers[setup.server_of(worker_idx)] if server_wakers else None
            args = (worker_idx, waker, list(learner_wakers.values()), server)
            specs.append(WorkerSpec(f"rollout-{worker_idx}", rollout_main, args, (worker_idx,)))
        for host_idx, waker in enumerate(host_wakers):
            workers = plan.workers_of_host(host_idx)
            specs.append(WorkerSpec(f"pool-{host_idx}", pool_main, (workers, waker, learner_wakers[names[0]]), workers))
        restarts = RestartPolicy(processes, setup, specs, wake_all, send)
        if config.eval_every_env_steps is not None:
            processes.start(EVALUATION, _evaluation_main, setup, build_evaluation_workers)
        if config.video_every_env_steps is not None:
            processes.start(VIDEOS, _evaluation_main, setup, build_video_workers)
        num_evaluations = 0
        outcomes: dict[str, LearnerOutcome] = {}
        try:
            while True:
                ended, failures = _wait(processes, send, setup)
                outcomes |= ended
                restarts.handle_failures(failures)
                restarts.update()
                if len(outcomes) == len(names):
                    break
                steer(control)
                if control.stop_requested:
                    for waker in learner_wakers.values():
                        waker.wake()
                if control.num_evaluations > num_evaluations and EVALUATION not in processes.running:
                    processes.start(EVALUATION, _evaluation_main, setup, build_evaluation_workers)
                num_evaluations = control.num_evaluations
        except RunFailed as failure:
            if _running(processes, names):
                control.request_stop()
                for waker in learner_wakers.values():
                    waker.wake()
                log.warning("%s; the learner finishes what it does and saves", failure.summary)
                _let_save(processes, names, send, setup, steer)
            raise
        control.end()
        wake_all()
        deadline = time.monotonic() + LAST_EVALUATION_S
        while (playing := {EVALUATION, VIDEOS} & set(processes.running)) and not control.stop_requested:
            if time.monotonic() > deadline:
                for name in playing:
                    send(_failure_report(name, f"the last one took longer than {LAST_EVALUATION_S:g} s", setup))
                break
            _wait(processes, send, setup)
            steer(control)
        return joint_outcome([outcomes[name] for name in names])
    except StopAtOnce:
        grace_s = 0.0
        raise
    finally:
        control.request_stop()
        control.end()
        wake_all()
        for name in processes.end(grace_s):
            if grace_s > 0.0:
                log.warning("%s did not end within %g s and was killed", name, grace_s)
        for report in processes.take_reports():
            send(report)
        for waker in wakers:
            waker.close()


def _wait(
    processes: ProcessManager, send: Send, setup: RunSetup
) -> tuple[dict[str, LearnerOutcome], list[ChildFailure]]:
    """Waits until a process ends, at most `WATCH_S`, and sends all reports.

    Returns the outcomes of learners that have ended, and the failures of processes that the run needs: it goes on
    without evaluations and videos.
    """
    outcomes, failures = {}, []
    ended = processes.wait(WATCH_S)
    for report in processes.take_reports():
        send(report)
    for child in ended:
        if isinstance(child, ChildFailure) and child.child in (EVALUATION, VIDEOS):
            processes.bury(child.child)  # a later request starts another evaluation
            send(_failure_report(child.child, child.summary, setup))
        elif isinstance(child, ChildFailure):
            failures.append(child)
        elif isinstance(child.value, LearnerOutcome):
            outcomes[child.child] = child.value
    return outcomes, failures


def _running(processes: ProcessManager, names: Sequence[str]) -> bool:
    return not set(names).isdisjoint(processes.running)


def _let_save(
    processes: ProcessManager, learners: Sequence[str], send: Send, setup: RunSetup, steer: ControlCallback
) -> None:
    """Waits until the learners, which were asked to stop, have saved, at most `SAVE_S`; raises `StopAtOnce`.

    If `steer` finds that the run cannot go on, learners may wait for other ranks for ever: they have `GRACE_S`.
    """
    began = time.monotonic()
    while _running(processes, learners) and time.monotonic() - began < SAVE_S:
        _wait(processes, send, setup)
        try:
            steer(setup.control)
        except RunFailed:
            if time.monotonic() - began > GRACE_S:
                return


def _failure_report(name: str, reason: str, setup: RunSetup) -> EvaluationFailed | VideoReport:
    """What is reported if the process of evaluations or videos failed as a whole."""
    if name == EVALUATION:
        return EvaluationFailed(reason)
    env_steps = WeightsChannel(setup.of_policy(0).arena).newest.env_steps
    return VideoReport(str(setup.checkpoints.parent / VIDEOS), env_steps, error=reason)


def _inference_main(
    setup: RunSetup, server_idx: int, waker: Waker, workers: Sequence[Waker], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    server, control = build_inference_worker(setup, server_idx, workers), setup.control
    log.info("at work")
    server.phases.restart()
    while not control.ended:
        wait_s = server.poll()
        if wait_s > 0.0:
            waker.wait(wait_s)
            server.phases.charge(server.waiting_for)
        if time.monotonic() - server.report_started >= REPORT_EVERY_S:
            reports.send(server.report())
    reports.send(server.report())


def _evaluation_main(
    setup: RunSetup, build: Callable[[RunSetup], list[EvaluationWorker | VideoWorker]], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    os.nice(EVALUATION_NICENESS)
    evaluations = build(setup)
    while not all(evaluation.is_over for evaluation in evaluations):
        due = [evaluation for evaluation in evaluations if evaluation.is_due]
        for evaluation in due:
            for report in evaluation.run():
                reports.send(report)
        if not due:
            time.sleep(POLL_S)


def _learner_main(setup: RunSetup, waker: Waker, others: Sequence[Waker], reports: ReportSender) -> LearnerOutcome:
    torch.set_num_threads(setup.plan.learner_threads)
    control = setup.control
    learner, exchange = build_learner(setup, waker, others[: setup.plan.num_workers])
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
        for other in [waker, *others]:
            other.wake()
        if exchange_thread is not None:
            exchange_thread.join(5.0)
