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
from asyncrl.config.plan import HogwildPlan
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import acting_seed
from asyncrl.inference.acting import make_act
from asyncrl.learner.on_policy import MODEL, OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
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
    OwnActions,
    PrivateSlot,
    WorkerParts,
)
from asyncrl.modes.learner_parts import LearnerParts
from asyncrl.modes.replay.mode import replay_of
from asyncrl.modes.roles import Exchange, ProcessRoles, Worker, build_env_groups
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.memory import keep_freed_memory
from asyncrl.processes.own_settings import own_settings, with_own_settings
from asyncrl.rollout.env_group import HostEnvGroup
from asyncrl.rollout.sinks import SlotSink, StripeSink
from asyncrl.rollout.worker import Split
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.storage import checkpoint

_POLL_S = 0.01
_CPU = torch.device("cpu")


class HogwildRoles(ProcessRoles):
    """Workers that train, and a parameter server in the place of the learner."""

    def prepare(self, setup: RunSetup) -> None:
        """The parameter server writes the initial parameters."""

    def worker(self, setup: RunSetup, worker_idx: int, learners: Sequence[Waker], server: Waker | None) -> Worker:
        channel, control = WeightsChannel(setup.arena), setup.control
        while channel.num_publications == 0 and not control.ended:
            time.sleep(_POLL_S)
        hogwild, arena = hogwild_of(setup.plan), Arena.create(private_specs(setup.spec, setup.plan))
        bound = setup.config.hogwild_max_staleness if hogwild.mode != "gradients" else None
        count_turn = functools.partial(control.count_turn, worker_idx)  # while it waits for the lock, it has not hung
        lock = None if bound is None else PushLock(setup.arena, count_turn)
        device = torch.device(hogwild.device_of(worker_idx))
        if device.type == "cpu" and setup.spec.observation.has_images:
            keep_freed_memory()
        parts = WorkerParts(
            worker_idx=worker_idx,
            control=control,
            clock=_clock(setup),
            arena=arena,
            phases=PhaseTimer(),
            meter=StalenessMeter(_trained(setup), worker_idx + 1, bound, lock),
            device=device,
            seed=acting_seed(setup.seed, worker_idx, setup.seed_steps),
        )
        (group,) = build_env_groups(setup, worker_idx).values()
        if setup.plan.replay is not None:
            return _build_sac_worker(setup, parts, group)
        return _build_trajectory_worker(setup, parts, group, learners[0])

    @with_own_settings
    def learner(
        self, setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
    ) -> tuple[LearnerWorker, Exchange | None]:
        parts = LearnerParts.begin(setup)
        return parts.worker(build_parameter_server(setup, waker, workers, parts.context.phases)), None


def build_parameter_server(
    setup: RunSetup, waker: Waker, workers: Sequence[Waker], phases: PhaseTimer
) -> ParameterServer:
    """Builds the parameter server, which publishes the initial parameters, or those of a checkpoint.

    Args:
        setup: the run.
        waker: wakes the parameter server.
        workers: wakes the workers, by their number.
        phases: the parameter server's time is charged here.
    """
    _initialize(setup)
    config, arena, hogwild = setup.config, setup.arena, hogwild_of(setup.plan)
    storage, publisher = SharedStorage(arena, RUN), WeightsPublisher(WeightsChannel(arena), 0)
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
    trained = _trained(setup)
    return ParameterServer(learner, storage, trained, publisher, waker, clock, setup.control, config, phases, combiner)


def _build_trajectory_worker(
    setup: RunSetup, parts: WorkerParts, group: HostEnvGroup, server: Waker
) -> HogwildTrajectoryWorker:
    hogwild, device = hogwild_of(setup.plan), parts.device
    config, units, channel, places = _config_of_rollouts(setup.learner_config, hogwild), None, None, None
    with own_settings():
        copies = Copies.PULLED if hogwild.mode == "synced" else _copies_on(device)
        shared = SharedStorage(setup.arena, parts.worker_idx + 1, copies, parts.meter)
        storage: ParameterStore = shared
        if hogwild.mode == "gradients":
            channel, places = WeightsChannel(setup.arena), GradientPlaces(setup.arena)
            storage = SendingStorage(shared, places, parts.worker_idx, server)
            config = config.model_copy(update={"max_grad_norm": 0.0})  # the combined gradient is clipped, not its parts
        else:
            units = ReturnUnits(setup.arena)
        learner = HogwildActorCritic(
            make_model(ActorCritic, setup.spec, config),
            config,
            storage,
            units,
            device,
            has_copies=copies is not Copies.NONE,
            channel=channel,
            meter=parts.meter,
        )
        slots = TrajectorySlots(parts.arena)
        slots.reset()
        act = learner.act_in_units(make_act(learner.model, device, parts.seed))
        exploration = learner.model.make_exploration(config, slots, 1, parts.seed)
        actions = OwnActions(act, slots, lambda: learner.policy_version, exploration)
    split = Split(0, group, SlotSink(0, group, slots, PrivateSlot(slots)), actions, parts.phases)
    return HogwildTrajectoryWorker(parts, split, slots, learner, places, setup.plan.recurrence)


def _build_sac_worker(setup: RunSetup, parts: WorkerParts, group: HostEnvGroup) -> HogwildSacWorker:
    # Each worker draws other noise; Hogwild workers do not read `exploration_noise`.
    config = setup.learner_config.model_copy(update={"seed": parts.seed, "exploration_noise": "white"})
    with own_settings():
        actor, device = make_model(SacActor, setup.spec, config), parts.device
        # An update has several steps, each at the weights that the one before has left: copies follow each of them.
        copies = Copies.FOLLOWING if hogwild_of(setup.plan).mode == "synced" else _copies_on(device)
        storage = SharedStorage(setup.arena, parts.worker_idx + 1, copies, parts.meter)
        count_turn = functools.partial(parts.control.count_turn, parts.worker_idx)
        learner = HogwildSacLearner(actor, config, setup.spec, device, storage, parts.meter, count_turn)
        learner.follow(parts.meter.num_updates)
        stripes, limits = ReplayStripes(parts.arena), ReplayLimits(parts.arena)
        act_trained = make_act(actor, device, parts.seed)
        untrained = UniformPolicy(actor.distribution, parts.seed, actor.layout)
        begins_trained = config.init_from is not None  # its critics may be new
        actions = OwnActions(
            lambda obs, state: (
                act_trained(obs, state) if begins_trained or learner.policy_version > 0 else untrained.act(obs)
            ),
            stripes,
            lambda: parts.meter.num_updates,
            actor.make_exploration(config, stripes, 1, parts.seed),
        )
        sampler = ReplaySampler(
            stripes, config.n_step, config.gamma, config.reward_scale, config.reward_clip, seed=parts.seed
        )
    replay = replay_of(setup.plan.for_one_worker)
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


def _trained(setup: RunSetup) -> SharedTensor:
    """The tensor whose steps count as updates."""
    return SharedTensor(setup.arena, CRITIC if setup.config.is_off_policy else MODEL)


def _config_of_rollouts(config: TrainConfig, hogwild: HogwildPlan) -> TrainConfig:
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
