"""The process of a rollout worker, of the learner's machine or of a pool on another one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

import torch

from asyncrl.buffers.messages import Waker
from asyncrl.config.plan import ROLLOUT_NICENESS
from asyncrl.modes.roles import ProcessRoles, roles_of
from asyncrl.observers.reports import is_report_due
from asyncrl.processes.children import EXIT_FAILED_TOO_OFTEN, RunFailed, explain
from asyncrl.processes.reporting import ReportSender
from asyncrl.processes.seeding import seed_global_generators
from asyncrl.rollout.failures import EnvironmentsKeepFailing, EnvironmentTrouble
from asyncrl.run.setup import RunSetup

log = logging.getLogger(__name__)


def rollout_main(
    setup: RunSetup,
    worker_idx: int,
    waker: Waker,
    learners: Sequence[Waker],
    server: Waker | None,
    reports: ReportSender,
) -> None:
    torch.set_num_threads(1)
    os.nice(ROLLOUT_NICENESS)
    seed_global_generators(setup.global_seed("rollout", worker_idx))
    try:
        roles: ProcessRoles = roles_of(setup)
        worker, control = roles.worker(setup, worker_idx, learners, server), setup.control
        log.info("at work")
        try:
            worker.phases.restart()
            started_at = time.monotonic()
            while not control.ended:
                wait_s = worker.poll()
                control.count_turn(worker_idx)
                if control.num_training_infos != worker.num_training_infos:
                    worker.take_training_info()
                if wait_s > 0.0:
                    waker.wait(wait_s)
                    worker.phases.charge(worker.waiting_for)
                if is_report_due(worker.report_started, started_at):
                    reports.send(worker.report())
            reports.send(worker.report())
        except (EnvironmentTrouble, EnvironmentsKeepFailing, RunFailed, OSError, MemoryError):
            raise
        except Exception as error:  # of the networks or of an update, not of an environment
            raise explain(f"rollout-{worker_idx}", error, is_final=True) from error
        finally:
            worker.close()
    except (EnvironmentTrouble, EnvironmentsKeepFailing) as error:
        raise environment_failure(worker_idx, error) from error


def environment_failure(worker_idx: int, error: EnvironmentTrouble | EnvironmentsKeepFailing) -> RunFailed:
    """The failure of the run for an environment's exception, with the environment's own traceback only."""
    if isinstance(error, EnvironmentTrouble):
        return RunFailed(f"rollout worker {worker_idx}: {error}", error.traceback, is_final=True)
    return RunFailed(str(error), error.tracebacks, EXIT_FAILED_TOO_OFTEN, is_final=True)
