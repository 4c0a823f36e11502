"""The only place where roles are wired together: all in one process (serial), or each in its own (parallel).

    rollout worker --requests--> inference worker        (central inference only)
    rollout worker <--actions--- inference worker
    rollout worker --ready slots--> learner --granted slots--> rollout worker
    learner --published weights--> whoever acts
    every role --reports, failures--> runner

All of it lies in one arena, which the runner makes before it starts anyone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Protocol

import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl
from asyncrl.buffers.layout import arena_specs
from asyncrl.buffers.requests import RequestTable
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.wake import Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import environment_traceback
from asyncrl.envs.making import env_seed
from asyncrl.envs.spec import EnvSpec
from asyncrl.inference.worker import InferenceWorker
from asyncrl.learner.batcher import Batcher
from asyncrl.learner.on_policy import LearnerState, OnPolicyLearner
from asyncrl.learner.publisher import WeightsPublisher
from asyncrl.learner.slot_ledger import SlotLedger
from asyncrl.learner.worker import LearnerOutcome, LearnerWorker, SlotExchange
from asyncrl.models.acting import ActingPolicy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import block_size
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.monitoring.reports import Report
from asyncrl.rollout.actions import LocalActions, RemoteActions
from asyncrl.rollout.building import build_env_group
from asyncrl.rollout.env_group import EnvironmentCallFailed
from asyncrl.rollout.split import ActionSource, Split
from asyncrl.rollout.worker import RolloutWorker
from asyncrl.runtime import checkpoint
from asyncrl.runtime.processes import ChildFailure, ChildResult, RunFailed
from asyncrl.runtime.reporting import ReportSender
from asyncrl.runtime.signals import StopAtOnce
from asyncrl.runtime.supervisor import Supervisor

REPORT_EVERY_S = 1.0
WATCH_S = 0.2
SAME_FAILURE_S = 0.3
GRACE_S = 4.0
ROLLOUT_NICENESS = 10  # on full cores whoever trains or answers goes first: others wait for that, nobody for one worker
LEARNER = "learner"
_ACTING_SEEDS = 1 << 20  # exploration seeds follow from other numbers than the environments' seeds

Send = Callable[[Report], None]
Turn = Callable[[], bool]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSetup:
    """What every role is built from. Crosses to children with their start-up arguments."""

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    arena: Arena
    checkpoints: Path

    @classmethod
    def create(cls, config: TrainConfig, plan: ResourcePlan, spec: EnvSpec, checkpoints: Path) -> RunSetup:
        """Allocates the arena of a run, all slots free."""
        num_weights = block_size(ActorCritic(spec, config))
        arena = Arena.create(arena_specs(spec, plan, num_weights))
        TrajectorySlots(arena).reset()
        return cls(config, plan, spec, arena, checkpoints)

    @property
    def control(self) -> RunControl:
        """The run's stop and progress words."""
        return RunControl(self.arena, self.plan.num_workers)

    def server_of(self, worker_idx: int) -> int:
        """The inference worker that serves a rollout worker: one for all its splits."""
        return worker_idx % self.plan.num_inference_workers

    def served_by(self, server_idx: int) -> list[int]:
        """The rollout workers that an inference worker serves."""
        return [worker for worker in range(self.plan.num_workers) if self.server_of(worker) == server_idx]


def build_acting_policy(setup: RunSetup, device: torch.device, actor_idx: int, phases: PhaseTimer) -> ActingPolicy:
    """The policy of actor number `actor_idx`, with a random generator of its own."""
    return ActingPolicy(
        model=ActorCritic(setup.spec, setup.config),
        weights=WeightsChannel(setup.arena),
        slots=TrajectorySlots(setup.arena),
        device=device,
        seed=env_seed(setup.config.seed, _ACTING_SEEDS + actor_idx),
        phases=phases,
    )


def build_rollout_worker(setup: RunSetup, worker_idx: int, learner: Waker, server: Waker | None) -> RolloutWorker:
    """A rollout worker with its environments, all reset.

    Args:
        setup: the run.
        worker_idx: its number.
        learner: wakes the learner.
        server: wakes its inference worker; None for local inference.
    """
    arena, plan = setup.arena, setup.plan
    slots, phases = TrajectorySlots(arena), PhaseTimer()
    actions: ActionSource
    if server is None:
        actions = LocalActions(build_acting_policy(setup, torch.device("cpu"), worker_idx, phases))
    else:
        actions = RemoteActions(RequestTable(arena), IndexRing(arena, f"requests.{worker_idx}"), server)
    first_split = worker_idx * plan.worker_num_splits
    return RolloutWorker(
        worker_idx=worker_idx,
        splits=[
            Split(split_idx, build_env_group(setup.config, plan, setup.spec, split_idx), slots, actions, phases)
            for split_idx in range(first_split, first_split + plan.worker_num_splits)
        ],
        slots=slots,
        granted=IndexRing(arena, f"granted.{worker_idx}"),
        ready=IndexRing(arena, f"ready.{worker_idx}"),
        learner=learner,
        control=setup.control,
        phases=phases,
    )


def build_inference_worker(setup: RunSetup, server_idx: int, workers: Sequence[Waker]) -> InferenceWorker:
    """An inference worker; `workers` wakes all rollout workers, by their number."""
    served, phases = setup.served_by(server_idx), PhaseTimer()
    return InferenceWorker(
        worker_idx=server_idx,
        policy=build_acting_policy(setup, torch.device(setup.plan.device), setup.plan.num_workers + server_idx, phases),
        slots=TrajectorySlots(setup.arena),
        table=RequestTable(setup.arena),
        rings={worker: IndexRing(setup.arena, f"requests.{worker}") for worker in served},
        clients={worker: workers[worker] for worker in served},
        splits_per_client=setup.plan.worker_num_splits,
        max_wait_s=setup.config.inference_max_wait_ms / 1000.0,
        control=setup.control,
        phases=phases,
    )


def build_learner(setup: RunSetup, workers: Sequence[Waker]) -> tuple[LearnerWorker, SlotExchange]:
    """The learner and its exchange of slots; `workers` wakes all rollout workers. Publishes the first weights."""
    arena, plan, config = setup.arena, setup.plan, setup.config
    torch.manual_seed(config.seed)
    slots = TrajectorySlots(arena)
    exchange = SlotExchange(
        ledger=SlotLedger(slots, plan),
        ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
        granted=[IndexRing(arena, f"granted.{worker_idx}") for worker_idx in range(plan.num_workers)],
        workers=workers,
        splits_per_worker=plan.worker_num_splits,
    )
    on_policy = OnPolicyLearner(ActorCritic(setup.spec, config), config, torch.device(plan.device))
    if config.init_from is not None:
        _start_from(on_policy, Path(config.init_from), config.learning_rate)
    learner = LearnerWorker(
        learner=on_policy,
        batcher=Batcher(slots, plan.columns_per_dataset),
        exchange=exchange,
        publisher=WeightsPublisher(WeightsChannel(arena), plan.forced_lag),
        control=setup.control,
        config=config,
        checkpoints=setup.checkpoints,
    )
    return learner, exchange


def _start_from(learner: OnPolicyLearner, folder: Path, learning_rate: float) -> None:
    """Gives a new run's learner what a checkpoint holds, but for the learning rate, which is this run's own."""
    saved = checkpoint.load(folder)
    scalars = {**saved.state, "learning_rate": learning_rate}
    learner.load_state_dict(LearnerState(dict(saved.model), dict(saved.optimizer), scalars))


def run_serial(setup: RunSetup, send: Send, turn: Turn) -> LearnerOutcome:
    """All roles in this process, in a fixed order.

    Args:
        setup: the run.
        send: takes the roles' reports.
        turn: called again and again; returns whether the run is to finish.
    """
    torch.set_num_threads(setup.plan.learner_threads)
    plan, control, waker = setup.plan, setup.control, Waker()
    learner, exchange = build_learner(setup, [waker] * plan.num_workers)
    workers = [build_rollout_worker(setup, worker_idx, waker, None) for worker_idx in range(plan.num_workers)]
    try:
        while not learner.is_over:
            exchange.poll()
            for worker in workers:
                with _environment_errors(worker.worker_idx):
                    worker.poll()
                _report_if_due(worker, send)
            learner.advance(0.0, send)
            if turn():
                control.request_stop()
        for worker in workers:
            send(worker.report())
        return learner.finish(send)
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
        RunFailed: a role failed. The learner has saved before, if it could.
    """
    supervisor = Supervisor(context, log_path)
    plan, control = setup.plan, setup.control
    learner_waker = Waker()
    workers = [Waker() for _ in range(plan.num_workers)]
    servers = [Waker() for _ in range(plan.num_inference_workers)]
    everyone = [learner_waker, *workers, *servers]
    grace_s = GRACE_S
    try:
        supervisor.start(LEARNER, _learner_main, setup, learner_waker, [*workers, *servers])
        for server_idx, waker in enumerate(servers):
            supervisor.start(f"inference-{server_idx}", _inference_main, setup, server_idx, waker, workers)
        for worker_idx, waker in enumerate(workers):
            server = servers[setup.server_of(worker_idx)] if servers else None
            supervisor.start(f"rollout-{worker_idx}", _rollout_main, setup, worker_idx, waker, learner_waker, server)
        return _watch(supervisor, control, learner_waker, send, turn)
    except StopAtOnce:
        grace_s = 0.0
        raise
    finally:
        control.end()
        for waker in everyone:
            waker.wake()
        for name in supervisor.end(grace_s):
            log.warning("%s did not end within %g s and was killed", name, grace_s)
        for report in supervisor.take_reports():
            send(report)
        for waker in everyone:
            waker.close()


def _watch(supervisor: Supervisor, control: RunControl, learner: Waker, send: Send, turn: Turn) -> LearnerOutcome:
    while True:
        outcomes = supervisor.wait(WATCH_S)
        for report in supervisor.take_reports():
            send(report)
        failures = [outcome for outcome in outcomes if isinstance(outcome, ChildFailure)]
        if failures:
            raise _fail(supervisor, control, learner, failures)
        for outcome in outcomes:
            if isinstance(outcome, ChildResult) and isinstance(outcome.value, LearnerOutcome):
                return outcome.value
        if turn() and not control.stop_requested:
            control.request_stop()
            learner.wake()


def _fail(supervisor: Supervisor, control: RunControl, learner: Waker, failures: list[ChildFailure]) -> RunFailed:
    """Lets others that fail in the same way speak too, and the learner save; returns what to raise."""
    failures = failures + [outcome for outcome in supervisor.wait(SAME_FAILURE_S) if isinstance(outcome, ChildFailure)]
    if LEARNER in supervisor.running:
        control.request_stop()
        learner.wake()
        supervisor.wait_for(LEARNER, GRACE_S)
    first = failures[0]
    same = f" ({len(failures)} processes failed)" if len(failures) > 1 else ""
    return RunFailed(first.summary + same, first.details)


@contextlib.contextmanager
def _environment_errors(worker_idx: int) -> Iterator[None]:
    """Says where an environment's exception came from, and keeps only the environment's own traceback."""
    try:
        yield
    except EnvironmentCallFailed as error:
        cause = error.__cause__ or error
        raise RunFailed(f"rollout worker {worker_idx}: {error}", environment_traceback(cause)) from error


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


def _serve(role: _Role, waker: Waker, control: RunControl, send: Send) -> None:
    try:
        role.phases.restart()
        while not control.ended:
            wait_s = role.poll()
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
    with _environment_errors(worker_idx):
        worker = build_rollout_worker(setup, worker_idx, learner, server)
        os.nice(ROLLOUT_NICENESS)
        _serve(worker, waker, setup.control, reports.send)


def _inference_main(
    setup: RunSetup, server_idx: int, waker: Waker, workers: Sequence[Waker], reports: ReportSender
) -> None:
    torch.set_num_threads(1)
    worker = build_inference_worker(setup, server_idx, workers)
    _serve(worker, waker, setup.control, reports.send)


def _learner_main(setup: RunSetup, waker: Waker, everyone: Sequence[Waker], reports: ReportSender) -> LearnerOutcome:
    torch.set_num_threads(setup.plan.learner_threads)
    control = setup.control
    learner, exchange = build_learner(setup, everyone[: setup.plan.num_workers])
    exchange_thread = threading.Thread(target=exchange.serve, args=(waker, control), name="slot exchange", daemon=True)
    exchange_thread.start()
    try:
        while not learner.is_over:
            learner.advance(0.1, reports.send)
        return learner.finish(reports.send)
    finally:
        control.end()
        for other in [waker, *everyone]:
            other.wake()
        exchange_thread.join(5.0)
