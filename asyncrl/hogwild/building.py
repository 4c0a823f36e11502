"""What the Hogwild backend is built from.

    worker 0: environments -> gradients --+
    worker 1: environments -> gradients --+--> one set of parameters, with the optimizer's state, in the arena
    ...                                   |
    keeper: publishes for evaluation, saves; in `gradients` mode it alone steps, along combined gradients

A worker's slot or replay, and its gradients, are in memory of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.gradients import GradientPlaces
from asyncrl.buffers.layout import arena_specs
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes
from asyncrl.buffers.shared_tensors import RUN, ReturnUnits, SharedTensor
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.plan import HogwildPlan, ReplayPlan
from asyncrl.envs.making import env_seed
from asyncrl.hogwild.a2c_worker import HogwildA2cWorker
from asyncrl.hogwild.actions import OwnActions
from asyncrl.hogwild.actor_critic import HogwildActorCritic, KeptActorCritic
from asyncrl.hogwild.clock import GlobalClock, saved_worker_steps
from asyncrl.hogwild.gradients import SendingStorage
from asyncrl.hogwild.keeper import GradientCombiner, HogwildKeeper
from asyncrl.hogwild.sac_worker import HogwildSacWorker
from asyncrl.hogwild.storage import Copies, InitialStorage, SharedStorage
from asyncrl.hogwild.worker import HogwildWorker, WorkerParts
from asyncrl.learner.limiter import ReplayLimiter
from asyncrl.learner.on_policy import MODEL, OnPolicyLearner
from asyncrl.learner.parameter_store import ParameterStore
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.sac import CRITIC, SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.worker import WeightsPublisher
from asyncrl.models.acting import make_act
from asyncrl.models.making import make_actor_critic, make_sac_actor
from asyncrl.models.uniform import UniformPolicy
from asyncrl.monitoring.phases import PhaseTimer
from asyncrl.rollout.building import build_env_group
from asyncrl.rollout.failures import FailureLog
from asyncrl.rollout.replay_worker import ReplaySplit
from asyncrl.rollout.worker import Split
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.runtime import checkpoint

_ACTING_SEEDS = 1 << 20
_LOOK_EVERY_S = 0.01
_CPU = torch.device("cpu")


def build_hogwild_keeper(
    setup: RunSetup, hogwild: HogwildPlan, waker: Waker, workers: Sequence[Waker], phases: PhaseTimer
) -> HogwildKeeper:
    """The keeper. Puts the first parameters, or those of a checkpoint, into the arena, and publishes them.

    Args:
        setup: the run.
        hogwild: its mode.
        waker: wakes the keeper.
        workers: wakes the workers, by their number.
        phases: the keeper's time goes here.
    """
    _initialize(setup)
    config, clock = setup.config, _clock(setup, _worker_steps_before(setup))
    storage = SharedStorage(setup.arena, RUN)
    publisher = WeightsPublisher(WeightsChannel(setup.arena), 0)
    if config.is_off_policy:
        sac = SacLearner(make_sac_actor(setup.spec, config), config, setup.spec, _CPU, storage)

        def follow_sac() -> int:
            storage.refresh()
            sac.follow(SharedTensor(setup.arena, CRITIC).num_steps)
            return sac.policy_version

        return HogwildKeeper(sac, follow_sac, publisher, waker, clock, config, phases)
    units = ReturnUnits(setup.arena)
    learner = KeptActorCritic(make_actor_critic(setup.spec, config), config, storage, units)

    def follow() -> int:
        storage.refresh()
        learner.follow(SharedTensor(setup.arena, MODEL).num_steps)
        return learner.policy_version

    if hogwild.mode != "gradients":
        return HogwildKeeper(learner, follow, publisher, waker, clock, config, phases)
    places, count = GradientPlaces(setup.arena), hogwild.num_gradients_to_combine
    return GradientCombiner(
        learner, follow, publisher, waker, clock, config, phases, places=places, count=count, workers=workers
    )


def build_hogwild_worker(setup: RunSetup, hogwild: HogwildPlan, worker_idx: int, keeper: Waker) -> HogwildWorker:
    """A worker with its environments, all reset; waits until the keeper has put the parameters into the arena.

    Args:
        setup: the run.
        hogwild: its mode.
        worker_idx: its number.
        keeper: wakes the keeper.
    """
    channel = WeightsChannel(setup.arena)
    while channel.num_publications == 0 and not setup.control.ended:
        time.sleep(_LOOK_EVERY_S)
    own = setup.plan.of_one_worker
    arena = Arena.create(arena_specs(setup.spec, own, num_weights=1))
    parts = WorkerParts(worker_idx, setup.control, _clock(setup), arena, PhaseTimer())
    if own.replay is not None:
        return _build_sac_worker(setup, own.replay, parts)
    return _build_a2c_worker(setup, hogwild, parts, keeper)


def _build_a2c_worker(setup: RunSetup, hogwild: HogwildPlan, parts: WorkerParts, keeper: Waker) -> HogwildA2cWorker:
    config, worker_idx = setup.config, parts.worker_idx
    owner = worker_idx + 1
    device = torch.device(setup.plan.device)
    copies = Copies.PULLED if hogwild.mode == "synced" else _copies_on(device)
    shared = SharedStorage(setup.arena, owner, copies)
    storage: ParameterStore = shared
    units: ReturnUnits | None = ReturnUnits(setup.arena)
    has_room: Callable[[], bool] = _always
    pull: Callable[[], None] = shared.sync
    if hogwild.mode == "gradients":
        places = GradientPlaces(setup.arena)
        storage = SendingStorage(shared, places, worker_idx, keeper)
        units = None
        config = config.model_copy(update={"max_grad_norm": 0.0})  # what is combined is clipped, not its parts

        def has_room() -> bool:
            return places.free_place(worker_idx) is not None

    learner = HogwildActorCritic(
        make_actor_critic(setup.spec, config), config, storage, units, device, has_copies=copies is not Copies.NONE
    )
    if hogwild.mode == "gradients":
        pull = _pull_published(setup, learner)
    slots = TrajectorySlots(parts.arena)
    slots.reset()
    act = learner.act_in_units(make_act(learner.model, device, _acting_seed(setup, worker_idx)))
    actions = OwnActions(act, slots, lambda: learner.policy_version)
    failures = FailureLog(worker_idx, setup.config, setup.control)
    group = build_env_group(setup.config, setup.plan, setup.spec, worker_idx, setup.seed, setup.seed_steps, failures)
    if (info := setup.control.newest_training_info) is not None:
        group.set_training_info(info)
    return HogwildA2cWorker(
        parts,
        split=Split(0, group, slots, actions, parts.phases),
        recurrence=setup.plan.recurrence,
        slots=slots,
        learner=learner,
        pull=pull,
        has_room=has_room,
    )


def _build_sac_worker(setup: RunSetup, replay: ReplayPlan, parts: WorkerParts) -> HogwildSacWorker:
    config, worker_idx = setup.config, parts.worker_idx
    config = config.model_copy(update={"seed": _acting_seed(setup, worker_idx)})  # noise of its own
    actor = make_sac_actor(setup.spec, config)
    device = torch.device(setup.plan.device)
    storage = SharedStorage(setup.arena, worker_idx + 1, _copies_on(device))
    learner = SacLearner(actor, config, setup.spec, device, storage)
    learner.follow(SharedTensor(setup.arena, CRITIC).num_steps)
    stripes, limits = ReplayStripes(parts.arena), ReplayLimits(parts.arena)
    act_trained = make_act(actor, device, config.seed)
    untrained = UniformPolicy(actor.distribution, config.seed, actor.layout)
    actions = OwnActions(
        lambda obs, state: act_trained(obs, state) if learner.policy_version > 0 else untrained.act(obs),
        stripes,
        lambda: learner.policy_version,
    )
    failures = FailureLog(worker_idx, setup.config, setup.control)
    group = build_env_group(setup.config, setup.plan, setup.spec, worker_idx, setup.seed, setup.seed_steps, failures)
    if (info := setup.control.newest_training_info) is not None:
        group.set_training_info(info)
    return HogwildSacWorker(
        parts,
        split=ReplaySplit(0, group, stripes, actions, parts.phases),
        stripes=stripes,
        limits=limits,
        limiter=ReplayLimiter(limits, replay, stripes, is_async=False, most_env_steps=config.train_for_env_steps),
        sampler=ReplaySampler(
            stripes, config.n_step, config.gamma, config.reward_scale, config.reward_clip, seed=config.seed
        ),
        learner=learner,
        config=config,
    )


def _initialize(setup: RunSetup) -> None:
    """Puts what a learner begins with into the arena, for all to attach to."""
    config, storage = setup.config, InitialStorage(setup.arena)
    saved: LearnerState | None = state_to_begin_with(setup)
    if config.is_off_policy:
        sac = SacLearner(make_sac_actor(setup.spec, config), config, setup.spec, _CPU, storage)
        if saved is not None:
            sac.load_state_dict(saved)
    else:
        learner = OnPolicyLearner(make_actor_critic(setup.spec, config), config, _CPU, storage)
        if saved is not None:
            learner.load_state_dict(saved)
        ReturnUnits(setup.arena).values[:] = learner.model.statistics[-2:].numpy()
    storage.finish()


def _pull_published(setup: RunSetup, learner: HogwildActorCritic) -> Callable[[], None]:
    """From the weights channel into the learner's network, statistics with them."""
    channel = WeightsChannel(setup.arena)
    block = np.empty(learner.block_size, dtype=np.float32)
    seen = 0

    def pull() -> None:
        nonlocal seen
        news = channel.read(block, seen)
        if news is not None:
            seen = news.number
            learner.take_published(torch.from_numpy(block), news.version)

    return pull


def _copies_on(device: torch.device) -> Copies:
    """What stands for the shared values, which are the CPU's."""
    return Copies.NONE if device.type == "cpu" else Copies.FOLLOWING


def _clock(setup: RunSetup, worker_steps_before: Sequence[int] = ()) -> GlobalClock:
    return GlobalClock(
        setup.arena,
        setup.control,
        setup.plan.num_workers,
        setup.first_env_steps,
        setup.config.train_for_env_steps,
        worker_steps_before,
    )


def _worker_steps_before(setup: RunSetup) -> Sequence[int]:
    return () if setup.resume_from is None else saved_worker_steps(checkpoint.load_state(setup.resume_from))


def _acting_seed(setup: RunSetup, worker_idx: int) -> int:
    return env_seed(setup.config.seed, _ACTING_SEEDS + worker_idx, setup.seed_steps)


def _always() -> bool:
    return True
