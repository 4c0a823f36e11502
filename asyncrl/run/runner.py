"""Runs the roles of a mode (`asyncrl.modes`): all in one process (serial), or each in its own (parallel).

    run_serial      one loop: rollout workers, learner, evaluation, one after the other
    run_parallel    starts a process for each role, watches them until the learner has ended, then ends all
    _inference_main, _evaluation_main, _learner_main    the loops of these processes; videos have one of their own,
                                                        with the evaluation's loop. Those of rollout workers and of
                                                        pools are in `rollout_process` and `RemoteWorkers.main`

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
from asyncrl.config.algorithms import imported
from asyncrl.envs.spaces import restoring_spaces
from asyncrl.evaluation.building import build_evaluation_workers, build_video_workers
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import POLL_S, EvaluationWorker
from asyncrl.learner.worker import LearnerOutcome, joint_outcome
from asyncrl.modes.roles import ActingRoles, ProcessRoles, Roles, roles_of
from asyncrl.observers.reports import EvaluationFailed, Report, VideoReport, is_report_due
from asyncrl.processes.children import ChildFailure, ProcessManager, RunFailed, allow_descriptors, explain
from asyncrl.processes.reporting import ReportSender
from asyncrl.processes.seeding import restoring_global_generators, seed_global_generators
from asyncrl.processes.signals import StopAtOnce
from asyncrl.rollout.failures import EnvironmentsKeepFailing, EnvironmentTrouble
from asyncrl.run.restart_policy import RestartPolicy, WorkerSpec
from asyncrl.run.rollout_process import environment_failure, rollout_main
from asyncrl.run.setup import RunSetup
from asyncrl.storage.run_folder import VIDEOS

WATCH_S = 0.1
GRACE_S = 4.0
SAVE_S = 300.0
"""How long learners may take to finish a step and to save when the run has failed."""
_DESCRIPTORS, _DESCRIPTORS_OF_CHILD = 256, 11
"""Of this process: files of modules, environments and the user; pipes, lifeline, wakers and the log of each child."""
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
    from there repeats this one to the bit. While it runs, the environments use the global random generators.

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
        with restoring_global_generators():
            while True:
                result = _SerialPart(part, send, steer, failed_videos).run()
                if not isinstance(result, Path):
                    return result
                pending, info = part.control.take_change(), part.control.newest_training_info
                part.arena.free()  # before the memory of the next part is taken
                part = RunSetup.create(setup.config, setup.plan, setup.spec, setup.checkpoints, result)
                if pending is not None:
                    part.control.send_change(pending)
                if info is not None:
                    part.control.send_training_info(RunControl.pack_training_info(info))
    finally:
        part.arena.close()


class _SerialPart:
    """All roles in this process, to the end of the run or, with `checkpoint_resets`, to the next checkpoint."""

    def __init__(self, setup: RunSetup, send: Send, steer: ControlCallback, failed_videos: list[VideoReport]) -> None:
        """Builds the roles.

        Args:
            setup: the run.
            send: receives the roles' reports.
            steer: called in each iteration, and a few times a second during an update.
            failed_videos: videos that failed are added; once there are some, no others are made.
        """
        torch.set_num_threads(setup.plan.learner_threads)
        seed_global_generators(setup.global_seed("serial"))
        self._setup, self._control, self._waker = setup, setup.control, Waker()
        self._send, self._failed_videos = send, failed_videos
        self._started_at = time.monotonic()
        self._steer = functools.partial(steer, self._control)
        roles: Roles = roles_of(setup)
        try:
            parts = roles.serial(setup, self._waker, self._steer)
        except (EnvironmentTrouble, EnvironmentsKeepFailing) as error:
            self._waker.close()
            env_idx = error.env_idx if isinstance(error, EnvironmentTrouble) else 0
            raise environment_failure(env_idx // setup.plan.num_envs_per_worker, error) from error
        self._learners, self._exchanges, self._workers, self._evaluations = parts
        self._videos = [] if failed_videos else build_video_workers(setup)

    def run(self) -> LearnerOutcome | Path:
        """Returns the outcome of the run, or the checkpoint from which the next part begins."""
        try:
            while active := [learner for learner in self._learners if not learner.is_over]:
                for exchange in self._exchanges:
                    exchange.poll()
                self._collect()
                reset_at = None
                for learner in active:
                    saved = learner.advance(0.0, self._send)
                    if saved is not None and saved.error is None and not learner.is_over:
                        reset_at = Path(saved.path) if self._setup.config.checkpoint_resets else None
                self._steer()
                self._evaluate()
                if reset_at is not None:
                    self._send_reports()
                    for learner in self._learners:
                        learner.save_best_if_asked(self._send)
                    return reset_at
            self._send_reports()
            outcome = joint_outcome([learner.finish(self._send) for learner in self._learners])
            self._control.end()
            self._evaluate()
            return outcome
        finally:
            for worker in self._workers:
                worker.close()
            self._waker.close()

    def _collect(self) -> None:
        """Lets each worker step. If an environment fails, the learners save first."""
        try:
            for worker in self._workers:
                if self._control.num_training_infos != worker.num_training_infos:
                    worker.take_training_info()
                worker.poll()
                if is_report_due(worker.report_started, self._started_at):
                    self._send(worker.report())
        except (EnvironmentTrouble, EnvironmentsKeepFailing, RunFailed) as error:
            self._control.request_stop()
            for learner in self._learners:
                learner.finish(self._send)
            if isinstance(error, RunFailed):
                raise
            raise environment_failure(worker.worker_idx, error) from error

    def _evaluate(self) -> None:
        """Plays the evaluations and videos that are due."""
        if not self._evaluations and self._control.num_evaluations > 0:
            self._evaluations = build_evaluation_workers(self._setup)
        for evaluation in (*self._evaluations, *self._videos):
            if not evaluation.is_due or self._control.stop_requested:
                continue
            with restoring_spaces([env for worker in self._workers for env in worker.envs]):
                reports = evaluation.run(self._steer)
            for report in reports:
                self._send(report)
                if isinstance(report, VideoReport) and report.error is not None:
                    self._failed_videos.append(report)

    def _send_reports(self) -> None:
        for worker in self._workers:
            self._send(worker.report())


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
    return _ParallelRun(setup, context, log_path, send, steer).run()


class _ParallelRun:
    """The processes of a run, and what the runner does while they work."""

    def __init__(
        self,
        setup: RunSetup,
        context: BaseContext,
        log_path: Callable[[str], Path],
        send: Send,
        steer: ControlCallback,
    ) -> None:
        """Makes what wakes the processes; see `run_parallel` for the arguments."""
        plan = setup.plan
        allow_descriptors(_DESCRIPTORS + _DESCRIPTORS_OF_CHILD * plan.num_processes)
        self._setup, self._control, self._send, self._steer = setup, setup.control, send, steer
        self._processes = ProcessManager(context, log_path)
        names = [LEARNER] if plan.num_policies == 1 else [f"{LEARNER}-{idx}" for idx in range(plan.num_policies)]
        self._learners = {name: Waker() for name in names}
        self._local_workers = [Waker() for _ in range(plan.num_local_workers)]
        self._bridges = [Waker() for _ in range(plan.remote.num_pools)]
        self._servers = [Waker() for _ in range(plan.num_inference_workers)]
        self._wakers = [*self._learners.values(), *self._local_workers, *self._bridges, *self._servers]

    def run(self) -> LearnerOutcome:
        """Starts the processes, watches them until all learners have ended, and ends them."""
        grace_s = GRACE_S
        try:
            outcomes = self._supervise()
            self._control.end()
            self._wake_all()
            self._await_last_evaluation()
            return joint_outcome([outcomes[name] for name in self._learners])
        except StopAtOnce:
            grace_s = 0.0
            raise
        finally:
            self._control.request_stop()
            self._control.end()
            self._wake_all()
            for name in self._processes.end(grace_s):
                if grace_s > 0.0:
                    log.warning("%s did not end within %g s and was killed", name, grace_s)
            for report in self._processes.take_reports():
                self._send(report)
            for waker in self._wakers:
                waker.close()

    def _wake_all(self) -> None:
        for waker in self._wakers:
            waker.wake()

    def _wake_learners(self) -> None:
        for waker in self._learners.values():
            waker.wake()

    def _start(self) -> RestartPolicy:
        setup, processes, config = self._setup, self._processes, self._setup.config
        remote = setup.plan.remote
        worker_wakers = self._local_workers + [waker for waker in self._bridges for _ in range(remote.workers_per_pool)]
        for policy_idx, (name, waker) in enumerate(self._learners.items()):
            others = [*worker_wakers, *self._servers]
            processes.start(name, _learner_main, setup.for_policy(policy_idx), waker, others)
        learner_wakers = list(self._learners.values())
        specs = [
            WorkerSpec(f"inference-{server_idx}", _inference_main, (server_idx, waker, worker_wakers))
            for server_idx, waker in enumerate(self._servers)
        ]
        for worker_idx, waker in enumerate(self._local_workers):
            server = self._servers[setup.server_of(worker_idx)] if self._servers else None
            args = (worker_idx, waker, learner_wakers, server)
            specs.append(WorkerSpec(f"rollout-{worker_idx}", rollout_main, args, (worker_idx,)))
        for pool_idx, waker in enumerate(self._bridges):
            workers = setup.plan.workers_of_pool(pool_idx)
            bridge_args = (workers, waker, learner_wakers[0])
            specs.append(WorkerSpec(f"pool-{pool_idx}", imported(remote.main), bridge_args, workers))
        restarts = RestartPolicy(processes, setup, specs, self._wake_all, self._send)
        if config.eval_every_env_steps is not None:
            processes.start(EVALUATION, _evaluation_main, setup, build_evaluation_workers)
        if config.video_every_env_steps is not None:
            processes.start(VIDEOS, _evaluation_main, setup, build_video_workers)
        return restarts

    def _supervise(self) -> dict[str, LearnerOutcome]:
        """Returns the outcome of each learner.

        Raises:
            RunFailed: the run cannot continue; the learners that run have saved.
        """
        restarts = self._start()
        num_evaluations = 0
        outcomes: dict[str, LearnerOutcome] = {}
        try:
            while True:
                ended, failures = self._wait()
                outcomes |= ended
                restarts.handle_failures(failures)
                restarts.update()
                if len(outcomes) == len(self._learners):
                    return outcomes
                self._steer(self._control)
                if self._control.stop_requested:
                    self._wake_learners()
                if self._control.num_evaluations > num_evaluations and EVALUATION not in self._processes.running:
                    successor = self._setup.for_restart(self._control.num_evaluations)
                    self._processes.start(EVALUATION, _evaluation_main, successor, build_evaluation_workers)
                num_evaluations = self._control.num_evaluations
        except RunFailed as failure:
            if self._learns:
                self._control.request_stop()
                self._wake_learners()
                log.warning("%s; the learner finishes what it does and saves", failure.summary)
                self._let_save()
            raise

    def _wait(self) -> tuple[dict[str, LearnerOutcome], list[ChildFailure]]:
        """Waits until a process ends, at most `WATCH_S`, and sends all reports.

        Returns the outcomes of learners that have ended, and the failures of processes that the run needs: it continues
        without evaluations and videos.
        """
        outcomes, failures = {}, []
        ended = self._processes.wait(WATCH_S)
        for report in self._processes.take_reports():
            self._send(report)
        for child in ended:
            if isinstance(child, ChildFailure) and child.child in (EVALUATION, VIDEOS):
                self._processes.reap(child.child)  # a later request starts another evaluation
                self._report_failure(child.child, child.summary)
            elif isinstance(child, ChildFailure):
                failures.append(child)
            elif isinstance(child.value, LearnerOutcome):
                outcomes[child.child] = child.value
        return outcomes, failures

    @property
    def _learns(self) -> bool:
        """Whether a learner's process runs."""
        return not self._learners.keys().isdisjoint(self._processes.running)

    def _let_save(self) -> None:
        """Waits until the learners, which were asked to stop, have saved, at most `SAVE_S`; raises `StopAtOnce`.

        If `steer` finds that the run cannot continue, learners may wait for other ranks for ever: they have `GRACE_S`.
        """
        began = time.monotonic()
        while self._learns and time.monotonic() - began < SAVE_S:
            self._wait()
            try:
                self._steer(self._control)
            except RunFailed:
                if time.monotonic() - began > GRACE_S:
                    return

    def _await_last_evaluation(self) -> None:
        deadline = time.monotonic() + LAST_EVALUATION_S
        while (playing := {EVALUATION, VIDEOS} & set(self._processes.running)) and not self._control.stop_requested:
            if time.monotonic() > deadline:
                for name in playing:
                    self._report_failure(name, f"the last one took longer than {LAST_EVALUATION_S:g} s")
                return
            self._wait()
            self._steer(self._control)

    def _report_failure(self, name: str, reason: str) -> None:
        """Reports that the process of evaluations or videos failed as a whole."""
        if name == EVALUATION:
            self._send(EvaluationFailed(reason))
            return
        env_steps = WeightsChannel(self._setup.for_policy(0).arena).newest.env_steps
        self._send(VideoReport(str(self._setup.checkpoints.parent / VIDEOS), env_steps, error=reason))


def _inference_main(
    setup: RunSetup, server_idx: int, waker: Waker, workers: Sequence[Waker], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    seed_global_generators(setup.global_seed("inference", server_idx))
    roles: ActingRoles = roles_of(setup)
    server, control = roles.inference_worker(setup, server_idx, workers), setup.control
    log.info("at work")
    server.phases.restart()
    started_at = time.monotonic()
    while not control.ended:
        try:
            wait_s = server.poll()
        except (OSError, MemoryError):
            raise
        except Exception as error:  # of the networks: a successor would raise again
            raise explain(f"inference-{server_idx}", error, is_final=True) from error
        if wait_s > 0.0:
            waker.wait(wait_s)
            server.phases.charge(server.waiting_for)
        if is_report_due(server.report_started, started_at):
            reports.send(server.report())
    reports.send(server.report())


def _evaluation_main(
    setup: RunSetup, build: Callable[[RunSetup], list[EvaluationWorker | VideoWorker]], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    os.nice(EVALUATION_NICENESS)
    seed_global_generators(setup.global_seed(build.__name__))  # each evaluation seeds them again
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
    seed_global_generators(setup.global_seed("learner"))
    control = setup.control
    roles: ProcessRoles = roles_of(setup)
    learner, exchange = roles.learner(setup, waker, others[: setup.plan.num_workers])
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
