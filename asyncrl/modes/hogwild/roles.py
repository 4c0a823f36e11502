"""Builds the roles of the Hogwild backend.

    worker 0: environments -> gradients --+
    worker 1: environments -> gradients --+--> one set of parameters, with the optimizer's state, in the arena
    ...                                   |
    parameter server: publishes for evaluation, saves; in `gradients` mode only it steps, along combined gradients

A worker's slot or replay, and its gradients, are in private memory.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimiter, ReplayLimits, ReplayStripes
from asyncrl.buffers.shared_tensors import RUN, GlobalClock, ReturnUnits, SharedTensor, saved_worker_steps
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import HogwildPlan, ReplayPlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import acting_seed
from asyncrl.inference.acting import make_act
from asyncrl.learner.on_policy import MODEL, OnPolicyLearner
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import CRITIC, SacLearner
from asyncrl.learner.transfer import begin_with
from asyncrl.learner.worker import LearnerWorker, WeightsPublisher
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_model
from asyncrl.models.sac import SacActor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.modes.hogwild.actor_critic import HogwildActorCritic, ServerActorCritic
from asyncrl.modes.hogwild.mode import hogwild_of, private_specs
from asyncrl.modes.hogwild.parameter_server import GradientCombiner, ParameterServer
from asyncrl.modes.hogwild.sac import HogwildSacLearner
from asyncrl.modes.hogwild.staleness import PushLock, StalenessMeter
from asyncrl.modes.hogwild.storage import Copies, InitialStorage, SendingStorage, SharedStorage
from asyncrl.modes.hogwild.worker import (
    HogwildSacWorker,
    HogwildTrajectoryWorker,
    HogwildWorker,
    OwnActions,
    PrivateSlot,
    WorkerParts,
)
from asyncrl.modes.learner_parts import LearnerParts
from asyncrl.modes.roles import Exchange, Roles, Worker
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.memory import keep_freed_memory
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.rollout.build_env_group import build_env_group
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.failures import FailureLog
from asyncrl.rollout.sinks import SlotSink, StripeSink
from asyncrl.rollout.worker import Split
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.storage import checkpoint

_POLL_S = 0.01
_CPU = torch.device("cpu")


class HogwildRoles(Roles):
    """Workers that train, and a parameter server in the place of the learner."""

    def prepare(self, setup: RunSetup) -> None:
        """The parameter server writes the initial parameters."""

    def worker(self, setup: RunSetup, worker_idx: int, learners: Sequence[Waker], server: Waker | None) -> Worker:
        return build_hogwild_worker(setup, hogwild_of(setup.plan), worker_idx, learners[0])

    @with_own_settings
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        parts = LearnerParts.begin(setup)
        return parts.worker(
            build_parameter_server(setup, hogwild_of(setup.plan), waker, workers, parts.context.phases)
        ), None


def build_parameter_server(
    setup: RunSetup, hogwild: HogwildPlan, waker: Waker, workers: Sequence[Waker], phases: PhaseTimer
) -> ParameterServer:
    """Builds the parameter server, which publishes the initial parameters, or those of a checkpoint.

    Args:
        setup: the run.
        hogwild: its mode.
        waker: wakes the parameter server.
        workers: wakes the workers, by their number.
        phases: the parameter server's time is charged here.
    """
    _initialize(setup)
    config, arena, storage = setup.config, setup.arena, SharedStorage(setup.arena, RUN)
    publisher = WeightsPublisher(WeightsChannel(arena), 0)
    resumed = () if setup.resume_from is None else saved_worker_steps(checkpoint.load_state(setup.resume_from))
    clock = _clock(setup, resumed)
    learner: ServerActorCritic | SacLearner
    combiner = None
    if config.is_off_policy:
        own = setup.learner_config.model_copy(update={"precision": "float32"})  # workers may have another precision
        learner = SacLearner(make_model(SacActor, setup.spec, config), own, setup.spec, _CPU, storage)
    else:
        model = make_model(ActorCritic, setup.spec, config)
        learner = ServerActorCritic(model, setup.learner_config, storage, ReturnUnits(arena))
        if hogwild.mode == "gradients":
            count, how = hogwild.num_gradients_to_combine, config.combine_gradients
            combiner = GradientCombiner(learner, GradientPlaces(arena), count, how, clock, workers)
    trained = SharedTensor(arena, CRITIC if config.is_off_policy else MODEL)
    return ParameterServer(learner, storage, trained, publisher, waker, clock, setup.control, config, phases, combiner)


def build_hogwild_worker(setup: RunSetup, hogwild: HogwildPlan, worker_idx: int, server: Waker) -> HogwildWorker:
    """Builds a worker with its environments, all reset, after the parameter server has published parameters.

    Args:
        setup: the run.
        hogwild: its mode.
        worker_idx: number of the worker.
        server: wakes the parameter server.
    """
    channel = WeightsChannel(setup.arena)
    while channel.num_publications == 0 and not setup.control.ended:
        time.sleep(_POLL_S)
    own = setup.plan.of_one_worker
    arena = Arena.create(private_specs(setup.spec, setup.plan))
    meter = _meter(setup, hogwild, worker_idx)
    device = torch.device(hogwild.device_of(worker_idx))
    if device.type == "cpu" and setup.spec.observation.has_images:
        keep_freed_memory()
    parts = WorkerParts(worker_idx, setup.control, _clock(setup), arena, PhaseTimer(), meter, device)
    seed = acting_seed(setup.seed, worker_idx, setup.seed_steps)
    failures = FailureLog(worker_idx, setup.config, setup.control)
    group = build_env_group(setup.config, setup.plan, setup.spec, worker_idx, setup.seed, setup.seed_steps, failures)
    if (info := setup.control.newest_training_info) is not None:
        group.set_training_info(info)
    if own.replay is not None:
        return _build_sac_worker(setup, hogwild, own.replay, parts, group, seed)
    return _build_trajectory_worker(setup, hogwild, parts, group, seed, server)


def _build_trajectory_worker(
    setup: RunSetup,
    hogwild: HogwildPlan,
    parts: WorkerParts,
    group: HostEnvGroup,
    seed: int,
    server: Waker,
) -> HogwildTrajectoryWorker:
    config, device, worker_idx = _of_rollouts(setup.learner_config, hogwild), parts.device, parts.worker_idx
    with own_settings():
        copies = Copies.PULLED if hogwild.mode == "synced" else _copies_on(device)
        shared = SharedStorage(setup.arena, worker_idx + 1, copies, parts.meter)
        if hogwild.mode == "gradients":
            places = GradientPlaces(setup.arena)
            learner = HogwildActorCritic(
                make_model(ActorCritic, setup.spec, config),
                config.model_copy(update={"max_grad_norm": 0.0}),  # the combined gradient is clipped, not its parts
                SendingStorage(shared, places, worker_idx, server),
                units=None,
                device=device,
                channel=WeightsChannel(setup.arena),
                meter=parts.meter,
            )
        else:
            places = None
            learner = HogwildActorCritic(
                make_model(ActorCritic, setup.spec, config),
                config,
                shared,
                ReturnUnits(setup.arena),
                device,
                has_copies=copies is not Copies.NONE,
                meter=parts.meter,
            )
        slots = TrajectorySlots(parts.arena)
        slots.reset()
        act = learner.act_in_units(make_act(learner.model, device, seed))
        exploration = learner.model.make_exploration(config, slots, 1, seed)
        actions = OwnActions(act, slots, lambda: learner.policy_version, exploration)
    sink = SlotSink(0, group, slots, PrivateSlot(slots))
    split = Split(0, group, sink, actions, parts.phases)
    return HogwildTrajectoryWorker(parts, split, slots, learner, places, setup.plan.recurrence)


def _build_sac_worker(
    setup: RunSetup,
    hogwild: HogwildPlan,
    replay: ReplayPlan,
    parts: WorkerParts,
    group: HostEnvGroup,
    seed: int,
) -> HogwildSacWorker:
    # Each worker draws other noise; Hogwild workers do not read `exploration_noise`.
    config = setup.learner_config.model_copy(update={"seed": seed, "exploration_noise": "white"})
    with own_settings():
        actor, device = make_model(SacActor, setup.spec, config), parts.device
        # An update has several steps, each at the weights that the one before has left: copies follow each of them.
        copies = Copies.FOLLOWING if hogwild.mode == "synced" else _copies_on(device)
        storage = SharedStorage(setup.arena, parts.worker_idx + 1, copies, parts.meter)
        note_update = functools.partial(parts.control.count_turn, parts.worker_idx)
        learner = HogwildSacLearner(actor, config, setup.spec, device, storage, parts.meter, note_update)
        learner.follow(SharedTensor(setup.arena, CRITIC).num_steps)
        stripes, limits = ReplayStripes(parts.arena), ReplayLimits(parts.arena)
        act_trained = make_act(actor, device, seed)
        untrained = UniformPolicy(actor.distribution, seed, actor.layout)
        begins_trained = config.init_from is not None  # its critics may be new
        actions = OwnActions(
            lambda obs, state: (
                act_trained(obs, state) if begins_trained or learner.policy_version > 0 else untrained.act(obs)
            ),
            stripes,
            lambda: parts.meter.num_updates,
            actor.make_exploration(config, stripes, 1, seed),
        )
        sampler = ReplaySampler(
            stripes, config.n_step, config.gamma, config.reward_scale, config.reward_clip, seed=seed
        )
    return HogwildSacWorker(
        parts,
        split=Split(0, group, StripeSink(0, group, stripes, limits), actions, parts.phases),
        limiter=ReplayLimiter(limits, replay, stripes, is_async=False, most_env_steps=config.train_for_env_steps),
        sampler=sampler,
        learner=learner,
        config=config,
    )


def _initialize(setup: RunSetup) -> None:
    """Writes the initial learner, or that of a checkpoint, into the arena."""
    config, storage, saved = setup.learner_config, InitialStorage(setup.arena), state_to_begin_with(setup)
    learner: OnPolicyLearner | SacLearner
    if config.is_off_policy:
        learner = SacLearner(make_model(SacActor, setup.spec, config), config, setup.spec, _CPU, storage)
    else:
        learner = OnPolicyLearner(make_model(ActorCritic, setup.spec, config), config, _CPU, storage)
    if saved is not None:
        begin_with(learner, saved)
    if isinstance(learner, OnPolicyLearner):
        ReturnUnits(setup.arena).values[:] = learner.model.statistics[-2:].numpy()
    storage.finish()


def _meter(setup: RunSetup, hogwild: HogwildPlan, worker_idx: int) -> StalenessMeter:
    """What measures the staleness of a worker's updates; while it waits for the lock, it does not count as hung."""
    trained = SharedTensor(setup.arena, CRITIC if setup.config.is_off_policy else MODEL)
    control, bound = setup.control, setup.config.hogwild_max_staleness if hogwild.mode != "gradients" else None
    lock = None if bound is None else PushLock(setup.arena, lambda: control.count_turn(worker_idx))
    return StalenessMeter(trained, worker_idx + 1, bound, lock)


def _of_rollouts(config: TrainConfig, hogwild: HogwildPlan) -> TrainConfig:
    """The settings with passes and minibatches of one worker's rollout.

    The decoupled objective is for samples of several policies; the policy that collected a rollout is its only one.
    """
    num_batches = hogwild.num_batches_per_epoch
    return config.model_copy(
        update={
            "num_epochs": hogwild.num_epochs,
            "num_batches_per_epoch": num_batches,
            "shuffle_minibatches": config.shuffle_minibatches and num_batches > 1,
            "ppo_objective": "clip",
        }
    )


def _copies_on(device: torch.device) -> Copies:
    """Which copies of the shared tensors, which are on the CPU, a learner on `device` needs."""
    return Copies.NONE if device.type == "cpu" else Copies.FOLLOWING


def _clock(setup: RunSetup, first_worker_steps: Sequence[int] = ()) -> GlobalClock:
    return GlobalClock(
        setup.arena,
        setup.control,
        setup.plan.num_workers,
        setup.first_env_steps,
        setup.config.train_for_env_steps,
        first_worker_steps,
    )
