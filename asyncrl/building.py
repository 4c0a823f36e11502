"""What every role is built from, and how: for one process or for many.

    rollout worker --requests--> inference worker        (central inference only)
    rollout worker <--actions--- inference worker
    rollout worker --ready slots--> learner --granted slots--> rollout worker
    learner --published weights--> whoever acts, evaluation

All of it lies in one arena, which the runner makes before it starts anyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from asyncrl.envs.making import env_seed
from asyncrl.envs.spec import EnvSpec
from asyncrl.evaluation_worker import EvaluationWorker
from asyncrl.inference.worker import InferenceWorker
from asyncrl.learner.batcher import Batcher
from asyncrl.learner.on_policy import LearnerState, OnPolicyLearner
from asyncrl.learner.publisher import WeightsPublisher
from asyncrl.learner.slot_ledger import SlotLedger
from asyncrl.learner.worker import LearnerWorker, SlotExchange
from asyncrl.models.acting import ActingPolicy
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import block_size
from asyncrl.monitoring.phases import PhaseTimer
from asyncrl.rollout.actions import LocalActions, RemoteActions
from asyncrl.rollout.building import build_env_group
from asyncrl.rollout.split import ActionSource, Split
from asyncrl.rollout.worker import RolloutWorker
from asyncrl.runtime import checkpoint

_ACTING_SEEDS = 1 << 20  # exploration seeds follow from other numbers than the environments' seeds


@dataclass(frozen=True)
class RunSetup:
    """What every role is built from. Crosses to children with their start-up arguments."""

    config: TrainConfig
    plan: ResourcePlan
    spec: EnvSpec
    arena: Arena
    checkpoints: Path
    resume_from: Path | None
    first_env_steps: int

    @classmethod
    def create(
        cls,
        config: TrainConfig,
        plan: ResourcePlan,
        spec: EnvSpec,
        checkpoints: Path,
        resume_from: Path | None = None,
    ) -> RunSetup:
        """Allocates the arena of a run, all slots free.

        Args:
            config: the run's settings.
            plan: what they were resolved to.
            spec: what the environment is.
            checkpoints: the run's folder of checkpoints.
            resume_from: the checkpoint that the run goes on from.
        """
        num_weights = block_size(ActorCritic(spec, config))
        env_steps = 0 if resume_from is None else checkpoint.saved_env_steps(resume_from)
        arena = Arena.create(arena_specs(spec, plan, num_weights))
        TrajectorySlots(arena).reset()
        return cls(config, plan, spec, arena, checkpoints, resume_from, env_steps)

    def continued(self, resume_from: Path) -> RunSetup:
        """The setup with which the same run goes on from a checkpoint, in an arena of its own."""
        return RunSetup.create(self.config, self.plan, self.spec, self.checkpoints, resume_from)

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
        seed=env_seed(setup.config.seed, _ACTING_SEEDS + actor_idx, setup.first_env_steps),
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
            Split(
                split_idx,
                build_env_group(setup.config, plan, setup.spec, split_idx, setup.first_env_steps),
                slots,
                actions,
                phases,
            )
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
    resumed = None
    if setup.resume_from is not None:
        resumed = _go_on_from(on_policy, setup.resume_from, config)
    elif config.init_from is not None:
        _start_from(on_policy, Path(config.init_from), config.learning_rate)
    learner = LearnerWorker(
        learner=on_policy,
        batcher=Batcher(slots, plan.columns_per_dataset),
        exchange=exchange,
        publisher=WeightsPublisher(WeightsChannel(arena), plan.forced_lag),
        control=setup.control,
        config=config,
        spec=setup.spec,
        checkpoints=setup.checkpoints,
        resumed=resumed,
    )
    return learner, exchange


def build_evaluation_worker(setup: RunSetup) -> EvaluationWorker:
    """What evaluates during training."""
    weights = WeightsChannel(setup.arena)
    return EvaluationWorker(setup.config, setup.spec, weights, setup.control, setup.checkpoints, setup.first_env_steps)


def _go_on_from(learner: OnPolicyLearner, folder: Path, config: TrainConfig) -> Mapping[str, Any]:
    """Gives a learner what a checkpoint of its own run holds, and returns that run's counters.

    The learning rate goes on where it was, unless the user has set another, or another schedule.
    """
    saved = checkpoint.load(folder)
    scalars = dict(saved.state)
    before = scalars["config"]
    if (before["learning_rate"], before["lr_schedule"]) != (config.learning_rate, config.lr_schedule):
        scalars["learning_rate"] = config.learning_rate
    learner.load_state_dict(LearnerState(dict(saved.model), dict(saved.optimizer), scalars))
    return scalars


def _start_from(learner: OnPolicyLearner, folder: Path, learning_rate: float) -> None:
    """Gives a new run's learner what a checkpoint holds, but for the learning rate, which is this run's own."""
    saved = checkpoint.load(folder)
    scalars = {**saved.state, "learning_rate": learning_rate}
    learner.load_state_dict(LearnerState(dict(saved.model), dict(saved.optimizer), scalars))
