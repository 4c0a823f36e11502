"""The roles of a run, which each mode builds from a setup, for one process or for many.

worker      steps environments; with local inference it acts, and in some modes it trains
inference   acts for workers (central inference only)
learner     trains and publishes weights; one for each policy
exchange    takes samples from workers and gives them room, in its own thread beside the learner
evaluation  plays whole episodes with published weights
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.inference_buffer import InferenceBuffer
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.algorithms import imported
from asyncrl.envs.factory import acting_seed
from asyncrl.evaluation.building import build_evaluation_workers
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import EvaluationWorker
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.acting_policies import ActingPolicies
from asyncrl.inference.worker import InferenceWorker
from asyncrl.learner.worker import LearnerWorker
from asyncrl.models.factory import make_acting_model
from asyncrl.modes.learner_parts import own_device
from asyncrl.observers.reports import Phase, PhaseTimer, RolloutReport
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.rollout.build_env_group import build_env_group
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.failures import FailureLog
from asyncrl.rollout.sinks import Sink
from asyncrl.rollout.worker import ActionSource, LocalActions, RemoteActions, RolloutWorker, Split
from asyncrl.run.setup import RunSetup


class Worker(Protocol):
    """Steps the environments of one rollout worker.

    Attributes:
        worker_idx: its number.
        phases: what it spends its time on.
        report_started: time on the monotonic clock of the last report.
        num_training_infos: how many dicts for environments it has passed on.
    """

    worker_idx: int
    phases: PhaseTimer
    report_started: float
    num_training_infos: int

    @property
    def waiting_for(self) -> Phase:
        """What it waits for after `poll`."""

    @property
    def envs(self) -> list[Any]:
        """The environments, for their spaces' random generators."""

    def poll(self) -> float:
        """Does what can be done at once; returns for how many seconds to wait, 0 for not at all."""

    def take_training_info(self) -> None:
        """Passes the newest dict for environments on."""

    def report(self) -> RolloutReport:
        """What was done since the last report."""

    def close(self) -> None:
        """Closes the environments."""


class Exchange(Protocol):
    """Moves samples between workers and one learner."""

    def poll(self) -> None:
        """Takes samples that are complete, and gives room for others."""

    def serve(self, waker: Waker, control: RunControl) -> None:
        """Polls until the run has ended."""


class SerialRoles(NamedTuple):
    """All roles of one process."""

    learners: list[LearnerWorker]
    exchanges: list[Exchange]
    workers: list[Worker]
    evaluations: list[EvaluationWorker | VideoWorker]


class Roles(ABC):
    """Builds the roles of one mode. The setup's shared memory has the arrays of this mode."""

    @abstractmethod
    def prepare(self, setup: RunSetup) -> None:
        """Fills new shared memory, before any role is built: marks slots as free, restores the replay."""

    @abstractmethod
    def serial(self, setup: RunSetup, waker: Waker, look: Callable[[], None]) -> SerialRoles:
        """All roles of one process; a learner for each policy.

        Args:
            setup: the run.
            waker: wakes the process.
            look: called during updates.
        """


class ProcessRoles(Roles):
    """Roles that can have a process each."""

    @abstractmethod
    def worker(self, setup: RunSetup, worker_idx: int, learners: Sequence[Waker], server: Waker | None) -> Worker:
        """A rollout worker with its environments, all reset.

        Args:
            setup: the run.
            worker_idx: its number.
            learners: wake the learner of each policy.
            server: wakes its inference worker; None for local inference.
        """

    @abstractmethod
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        """The learner, which has published its first weights, and the exchange of its samples, if there is one.

        Args:
            setup: the run, or the part of one policy.
            waker: wakes the learner.
            workers: wake the rollout workers, by their number.
            look: called during updates, for the other roles of the process.
        """

    def serial(self, setup: RunSetup, waker: Waker, look: Callable[[], None]) -> SerialRoles:
        plan = setup.plan
        learners = [
            self.learner(setup.for_policy(policy_idx), waker, [waker] * plan.num_workers, look)
            for policy_idx in range(plan.num_policies)
        ]
        wakers = [waker] * plan.num_policies
        return SerialRoles(
            learners=[learner for learner, _ in learners],
            exchanges=[exchange for _, exchange in learners if exchange is not None],
            workers=[self.worker(setup, worker_idx, wakers, None) for worker_idx in range(plan.num_workers)],
            evaluations=build_evaluation_workers(setup) if setup.config.eval_every_env_steps is not None else [],
        )


class ActingRoles(ProcessRoles):
    """Roles that act with published weights, in the worker or in an inference worker."""

    @abstractmethod
    def inference_buffer(self, setup: RunSetup) -> InferenceBuffer:
        """Where observations wait for actions."""

    @abstractmethod
    def sink_maker(
        self, setup: RunSetup, worker_idx: int, groups: Mapping[int, HostEnvGroup], learners: Sequence[Waker]
    ) -> Callable[[int, HostEnvGroup], Sink]:
        """A function that makes the sink of a split, from its number and its environments, which it resets."""

    def worker(self, setup: RunSetup, worker_idx: int, learners: Sequence[Waker], server: Waker | None) -> Worker:
        arena, phases = setup.arena, PhaseTimer()
        actions: ActionSource
        if server is None:
            actions = LocalActions(self.acting_policy(setup, torch.device("cpu"), worker_idx, phases))
        else:
            actions = RemoteActions(RequestTable(arena), IndexRing(arena, f"requests.{worker_idx}"), server)
        groups = build_env_groups(setup, worker_idx)
        make_sink = self.sink_maker(setup, worker_idx, groups, learners)
        splits = [Split(idx, group, make_sink(idx, group), actions, phases) for idx, group in groups.items()]
        return RolloutWorker(worker_idx, splits, setup.control, phases)

    @with_own_settings
    def acting_policy(
        self, setup: RunSetup, device: torch.device, actor_idx: int, phases: PhaseTimer
    ) -> ActingPolicy | ActingPolicies:
        """The policy of actor number `actor_idx`, with separate random generators."""
        plan, buffer = setup.plan, self.inference_buffer(setup)
        model, seed = make_acting_model(setup.spec, setup.config), acting_seed(setup.seed, actor_idx, setup.seed_steps)
        return ActingPolicy(
            model=model,
            weights=WeightsChannel(setup.arena),
            buffer=buffer,
            device=device,
            seed=seed,
            phases=phases,
            compile=setup.config.compile,
            exploration=model.make_exploration(setup.config, buffer, plan.num_splits, seed),
        )

    def inference_worker(self, setup: RunSetup, server_idx: int, workers: Sequence[Waker]) -> InferenceWorker:
        """An inference worker; `workers` wakes all rollout workers, by their number."""
        served, phases, plan = setup.served_by(server_idx), PhaseTimer(), setup.plan
        device = own_device(plan.inference_devices[server_idx % len(plan.inference_devices)])
        return InferenceWorker(
            worker_idx=server_idx,
            policy=self.acting_policy(setup, device, plan.num_workers + server_idx, phases),
            num_envs=plan.columns_per_split,
            table=RequestTable(setup.arena),
            rings={worker: IndexRing(setup.arena, f"requests.{worker}") for worker in served},
            clients={worker: workers[worker] for worker in served},
            splits_per_client=plan.worker_num_splits,
            max_wait_s=setup.config.inference_max_wait_ms / 1000.0,
            worker_deaths=setup.worker_deaths,
            phases=phases,
        )


def build_env_groups(setup: RunSetup, worker_idx: int) -> dict[int, HostEnvGroup]:
    """The environments of a worker by the number of their split, with the newest dict for environments."""
    plan = setup.plan
    failures = FailureLog(worker_idx, setup.config, setup.control)
    first_split = worker_idx * plan.worker_num_splits
    groups = {
        split_idx: build_env_group(
            setup.config,
            plan,
            setup.spec,
            split_idx,
            setup.seed,
            setup.seed_steps,
            failures,
            setup.config.maps_policies,
            [WeightsChannel(setup.for_opponent(number).arena) for number in range(plan.num_opponents)],
        )
        for split_idx in range(first_split, first_split + plan.worker_num_splits)
    }
    if (info := setup.control.newest_training_info) is not None:
        for group in groups.values():
            group.set_training_info(info)
    return groups


def roles_of(setup: RunSetup) -> Any:
    """The roles of a run's mode: `Roles`; `ProcessRoles` if it has processes; `ActingRoles` if workers act."""
    return imported(setup.mode.roles)()
