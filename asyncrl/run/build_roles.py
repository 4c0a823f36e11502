"""Builds every role of a run, for one process or for many.

    rollout worker --requests--> inference worker        (central inference only)
    rollout worker <--actions--- inference worker
    rollout worker --ready slots--> learner --granted slots--> rollout worker
    learner --published weights--> whoever acts, evaluation

Everything that roles share is in one arena, which the runner allocates before it starts them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.control import FROM_FILE, TAKEOVER_FILE, TrainedSteps
from asyncrl.buffers.layout import policy_prefix, trajectory_fields
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.buffers.remote_replay import RemoteReplayLimiter
from asyncrl.buffers.replay import ReplayLimiter, ReplayLimits, ReplayStripes
from asyncrl.buffers.slot_pool import SlotPool
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.algorithms import imported
from asyncrl.config.plan import ReplayPlan, ResourcePlan
from asyncrl.envs.factory import acting_seed, env_seed, make_run_vector_env, vector_env_seed
from asyncrl.evaluation.videos import VideoWorker
from asyncrl.evaluation.worker import EvaluationWorker, PublishedPolicy, PublishedTeam
from asyncrl.hogwild.build_hogwild import build_hogwild_worker, build_parameter_server
from asyncrl.hogwild.worker import HogwildWorker
from asyncrl.inference.worker import InferenceWorker
from asyncrl.learner.dataset import Batcher, DeviceSlots
from asyncrl.learner.hindsight_sampler import HindsightSampler
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.policy_rows import PolicyRows
from asyncrl.learner.policy_source import PolicySource
from asyncrl.learner.prioritized_sampler import PrioritizedSampler
from asyncrl.learner.ranks import ProcessGroupRanks, RankConsensus, Ranks
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.replay_loop import ReplayLoop
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.learner.sequence_sampler import SequenceSampler
from asyncrl.learner.slot_ledger import SlotExchange, SlotLedger
from asyncrl.learner.state import LearnerState
from asyncrl.learner.threads import ThreadChoice
from asyncrl.learner.trajectory_loop import DatasetRoom, DatasetSource, TrajectoryLoop
from asyncrl.learner.transfer import begin_with
from asyncrl.learner.worker import LearnerLoop, LearnerWorker, StopCondition, WeightsPublisher
from asyncrl.models.acting import ActingPolicy
from asyncrl.models.acting_policies import ActingPolicies
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.exploration import Exploration, make_exploration
from asyncrl.models.factory import make_acting_model
from asyncrl.monitoring.reports import PhaseTimer
from asyncrl.on_device.env_group import TensorEnvGroup
from asyncrl.on_device.evaluation import EvaluatingGroup, SimulatorEvaluation
from asyncrl.on_device.replay import DeviceReplay
from asyncrl.on_device.worker import DeviceReplayWorker, DeviceWorker
from asyncrl.rollout.build_env_group import build_env_group
from asyncrl.rollout.failures import FailureLog
from asyncrl.rollout.hindsight import GoalEnvGroup, HindsightSplit
from asyncrl.rollout.worker import (
    ActionSource,
    LocalActions,
    PooledRolloutWorker,
    RemoteActions,
    ReplaySplit,
    ReplayWorker,
    RolloutWorker,
    Split,
)
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.runtime.checkpoint import load, load_state
from asyncrl.runtime.memory import keep_freed_memory
from asyncrl.runtime.run_folder import VIDEOS
from asyncrl.runtime.seeding import Stream, derive_seed

log = logging.getLogger(__name__)


def build_acting_policy(
    setup: RunSetup, device: torch.device, actor_idx: int, phases: PhaseTimer
) -> ActingPolicy | ActingPolicies:
    """The policy, or all policies and opponents, of actor number `actor_idx`, with random generators of its own."""
    plan = setup.plan
    if plan.has_slot_pools and setup.policy_idx is None:
        setups = [setup.of_policy(idx) for idx in range(plan.num_policies)]
        setups += [setup.of_opponent(number) for number in range(plan.num_opponents)]
        policies = [
            build_acting_policy(each, device, actor_idx * len(setups) + idx, phases) for idx, each in enumerate(setups)
        ]
        seed = acting_seed(setup.seed, actor_idx, setup.seed_steps)
        slots = TrajectorySlots(setup.arena)
        return ActingPolicies([each for each in policies if isinstance(each, ActingPolicy)], slots, seed, phases)
    model, seed = make_acting_model(setup.spec, setup.config), acting_seed(setup.seed, actor_idx, setup.seed_steps)
    buffer = TrajectorySlots(setup.arena) if plan.replay is None else ReplayStripes(setup.arena)
    return ActingPolicy(
        model=model,
        weights=WeightsChannel(setup.arena),
        buffer=buffer,
        device=device,
        seed=seed,
        phases=phases,
        compile=setup.config.compile,
        exploration=make_exploration(model, setup.config, buffer, plan.num_splits, plan.envs_per_split, seed),
    )


def build_rollout_worker(
    setup: RunSetup, worker_idx: int, learners: Sequence[Waker], server: Waker | None
) -> RolloutWorker | PooledRolloutWorker | ReplayWorker | HogwildWorker:
    """A rollout worker with its environments, all reset; in the Hogwild backend it trains as well.

    Args:
        setup: the run.
        worker_idx: its number.
        learners: wake the learner of each policy.
        server: wakes its inference worker; None for local inference.
    """
    arena, plan, phases = setup.arena, setup.plan, PhaseTimer()
    if plan.hogwild is not None:
        return build_hogwild_worker(setup, plan.hogwild, worker_idx, learners[0])
    actions: ActionSource
    if server is None:
        actions = LocalActions(build_acting_policy(setup, torch.device("cpu"), worker_idx, phases))
    else:
        actions = RemoteActions(RequestTable(arena), IndexRing(arena, f"requests.{worker_idx}"), server)
    first_split = worker_idx * plan.worker_num_splits
    failures = FailureLog(worker_idx, setup.config, setup.control)
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
            [WeightsChannel(setup.of_opponent(number).arena) for number in range(plan.num_opponents)],
        )
        for split_idx in range(first_split, first_split + plan.worker_num_splits)
    }
    if (info := setup.control.newest_training_info) is not None:
        for group in groups.values():
            group.set_training_info(info)
    if plan.replay is not None:
        stripes = ReplayStripes(arena)
        if setup.steps_at_restart is not None:
            for split_idx in groups:
                stripes.close_episodes(split_idx)
        writers: list[ReplaySplit] = []
        for split_idx, group in groups.items():
            if isinstance(group, GoalEnvGroup):
                first_env = split_idx * plan.envs_per_split
                seed = derive_seed(env_seed(setup.seed, first_env, setup.seed_steps), Stream.HINDSIGHT)
                writers.append(HindsightSplit(split_idx, group, stripes, actions, seed, phases))
            else:
                writers.append(ReplaySplit(split_idx, group, stripes, actions, phases))
        return ReplayWorker(worker_idx, writers, stripes, ReplayLimits(arena), learners[0], setup.control, phases)
    slots = TrajectorySlots(arena)
    splits = [Split(split_idx, group, slots, actions, phases) for split_idx, group in groups.items()]
    if plan.has_slot_pools:
        pools = [SlotPool(arena, slots, plan, split_idx) for split_idx in groups]
        weights = [WeightsChannel(setup.of_policy(idx).arena) for idx in range(plan.num_policies)]
        return PooledRolloutWorker(worker_idx, splits, pools, slots, learners, setup.control, weights, phases)
    return RolloutWorker(
        worker_idx=worker_idx,
        splits=splits,
        slots=slots,
        granted=IndexRing(arena, f"granted.{worker_idx}"),
        ready=IndexRing(arena, f"ready.{worker_idx}"),
        learner=learners[0],
        control=setup.control,
        phases=phases,
    )


def build_inference_worker(setup: RunSetup, server_idx: int, workers: Sequence[Waker]) -> InferenceWorker:
    """An inference worker; `workers` wakes all rollout workers, by their number."""
    served, phases = setup.served_by(server_idx), PhaseTimer()
    device = _own_device(setup.plan.inference_devices[server_idx % len(setup.plan.inference_devices)])
    return InferenceWorker(
        worker_idx=server_idx,
        policy=build_acting_policy(setup, device, setup.plan.num_workers + server_idx, phases),
        num_envs=setup.plan.columns_per_split,
        table=RequestTable(setup.arena),
        rings={worker: IndexRing(setup.arena, f"requests.{worker}") for worker in served},
        clients={worker: workers[worker] for worker in served},
        splits_per_client=setup.plan.worker_num_splits,
        max_wait_s=setup.config.inference_max_wait_ms / 1000.0,
        worker_deaths=setup.worker_deaths,
        phases=phases,
    )


def build_learner(
    setup: RunSetup, waker: Waker, workers: Sequence[Waker], look: Callable[[], None] | None = None
) -> tuple[LearnerWorker, SlotExchange | PolicySource | None]:
    """The learner, and its exchange of slots unless it learns from a replay. Publishes the first weights.

    Args:
        setup: the run.
        waker: wakes the learner.
        workers: wake the rollout workers, by their number.
        look: called during updates, for the other roles of the process.
    """
    parts, arena, plan = _LearnerParts.begin(setup), setup.arena, setup.plan
    if plan.hogwild is not None:
        return parts.worker(build_parameter_server(setup, plan.hogwild, waker, workers, parts.phases)), None
    if plan.replay is not None:
        return parts.worker(_build_replay_loop(parts, plan.replay, ReplayStripes(arena), waker, workers)[0]), None
    slots = TrajectorySlots(arena)
    if plan.has_slot_pools:
        source = _build_policy_source(setup, slots, workers)
        return parts.worker(_build_trajectory_loop(parts, parts.on_policy_learner(), source, source, look)), source
    copies = DeviceSlots(slots, parts.device, arena) if parts.device.type == "cuda" else None
    exchange = SlotExchange(
        ledger=SlotLedger(slots, plan, copies),
        ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
        granted=[IndexRing(arena, f"granted.{worker_idx}") for worker_idx in range(plan.num_workers)],
        workers=workers,
        splits_per_worker=plan.worker_num_splits,
        worker_deaths=setup.worker_deaths,
    )
    batcher = Batcher(slots, plan.columns_per_dataset, plan.recurrence, plan.steady_lag_bound, copies)
    return parts.worker(_build_trajectory_loop(parts, parts.on_policy_learner(), exchange, batcher, look)), exchange


def _build_policy_source(setup: RunSetup, slots: TrajectorySlots, workers: Sequence[Waker]) -> PolicySource:
    arena, plan = setup.arena, setup.plan
    assert slots.filled is not None
    own_rows = {field.name: field.row_shape for field in trajectory_fields(setup.spec, plan.rnn_state_size)}
    rows = PolicyRows(
        policy_idx=setup.policy_idx or 0,
        slots=slots,
        columns_per_dataset=plan.columns_per_dataset if plan.async_rl else None,
        num_datasets=plan.num_batches_to_accumulate,
        recurrence=plan.recurrence,
        max_policy_lag=plan.max_policy_lag,
        steady_lag_bound=plan.steady_lag_bound,
        row_shapes=own_rows,
    )
    return PolicySource(
        rows=rows,
        filled=slots.filled,
        taken=arena.words("taken"),
        ready=[IndexRing(arena, f"ready.{worker_idx}") for worker_idx in range(plan.num_workers)],
        workers=workers,
        slots_per_worker=plan.worker_num_splits * plan.slots_per_split,
        is_async=plan.async_rl,
    )


SerialWorker = RolloutWorker | PooledRolloutWorker | ReplayWorker | HogwildWorker | DeviceWorker | DeviceReplayWorker


class SerialRoles(NamedTuple):
    """All roles of one process."""

    learners: list[LearnerWorker]
    exchanges: list[SlotExchange | PolicySource]
    workers: list[SerialWorker]
    evaluations: list[EvaluationWorker | VideoWorker]


def build_serial(setup: RunSetup, waker: Waker, look: Callable[[], None]) -> SerialRoles:
    """All roles of one process, as `build_learner` and `build_rollout_worker` make them; a learner for each policy.

    Args:
        setup: the run.
        waker: wakes the process.
        look: called during updates.
    """
    plan = setup.plan
    if plan.steps_tensors:
        return _build_on_device(setup, look)
    learners: list[LearnerWorker] = []
    exchanges: list[SlotExchange | PolicySource] = []
    for policy_idx in range(plan.num_policies):
        learner, exchange = build_learner(setup.of_policy(policy_idx), waker, [waker] * plan.num_workers, look)
        learners.append(learner)
        if exchange is not None:
            exchanges.append(exchange)
    wakers = [waker] * plan.num_policies
    workers: list[SerialWorker] = [build_rollout_worker(setup, idx, wakers, None) for idx in range(plan.num_workers)]
    evaluations = build_evaluation_workers(setup) if setup.config.eval_every_env_steps is not None else []
    return SerialRoles(learners, exchanges, workers, evaluations)


def _build_on_device(setup: RunSetup, look: Callable[[], None]) -> SerialRoles:
    config, plan, parts = setup.config, setup.plan, _LearnerParts.begin(setup)
    evaluations: list[EvaluationWorker | VideoWorker] = []
    group = _build_tensor_group(setup, parts.device, evaluations)
    if (info := setup.control.newest_training_info) is not None:
        group.set_training_info(info)
    seed = acting_seed(setup.seed, 0, setup.seed_steps)
    worker: DeviceWorker | DeviceReplayWorker
    loop: LearnerLoop
    if plan.replay is None:
        learner = parts.on_policy_learner()
        worker = DeviceWorker(group, learner, setup.spec, plan, parts.device, seed, setup.control)
        loop = _build_trajectory_loop(parts, learner, worker, worker, look, publishes_passes=False)
    else:
        replay = DeviceReplay(setup.spec, plan.num_envs, plan.replay, parts.device)
        saved = None if setup.resume_from is None else load(setup.resume_from, with_replay=True).replay
        if saved is not None:
            replay.restore(saved)
        loop, replay_learner = _build_replay_loop(parts, plan.replay, replay, None, [])
        limits, exploration = ReplayLimits(setup.arena), None
        if Exploration.is_needed(replay_learner.model, config):
            exploration = Exploration(replay_learner.model, config, 1, plan.num_envs, seed)
        worker = DeviceReplayWorker(
            group, replay_learner, replay, limits, parts.device, seed, setup.control, exploration
        )
    if not evaluations and config.eval_every_env_steps is not None:
        evaluations = build_evaluation_workers(setup)
    return SerialRoles([parts.worker(loop)], [], [worker], evaluations)


def _build_tensor_group(
    setup: RunSetup, device: torch.device, evaluations: list[EvaluationWorker | VideoWorker]
) -> TensorEnvGroup:
    """The simulator; adds its evaluation to `evaluations` if a part of it evaluates."""
    config, plan, spec = setup.config, setup.plan, setup.spec
    env = make_run_vector_env(config, plan.num_envs + plan.num_eval_envs)
    seed = vector_env_seed(setup.seed, 0, setup.seed_steps)
    if plan.num_eval_envs == 0:
        return TensorEnvGroup(env, seed, spec, config.action_mapping, device)
    ((_, team),) = _published_teams(setup)
    evaluation = SimulatorEvaluation(
        team, setup.control, setup.checkpoints, setup.first_env_steps, plan.num_eval_envs, device
    )
    evaluations.append(evaluation)
    return EvaluatingGroup(env, seed, spec, config.action_mapping, device, evaluation)


def _own_device(name: str) -> torch.device:
    """The device of a role, which becomes the default device of this process."""
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


@dataclass
class _LearnerParts:
    """Parts that every learner has."""

    setup: RunSetup
    device: torch.device
    saved: LearnerState | None
    phases: PhaseTimer
    agreement: RankConsensus
    stopping: StopCondition

    @classmethod
    def begin(cls, setup: RunSetup) -> _LearnerParts:
        """Connects to other ranks and loads the checkpoint that the run begins with."""
        torch.manual_seed(setup.seed)
        device = _own_device(setup.plan.device)
        if device.type == "cpu" and setup.spec.observation.has_images:
            keep_freed_memory()
        ranks = Ranks() if setup.rank is None else ProcessGroupRanks(setup.rank, device)
        saved = state_to_begin_with(setup)
        is_resumed = setup.resume_from is not None and saved is not None
        elapsed_s = float(saved.scalars["elapsed_s"]) if saved is not None and is_resumed else 0.0
        # Policies may have saved at different times, or not at all, and end at the same one.
        starts = (path for path, _ in setup.starts_of_policies if path is not None)
        elapsed_s = max([elapsed_s, *(float(load_state(path)["elapsed_s"]) for path in starts)])
        return cls(
            setup=setup,
            device=device,
            saved=saved,
            phases=PhaseTimer(),
            agreement=RankConsensus(ranks, setup.control, setup.hyperparameters),
            stopping=StopCondition(setup.control, setup.config.train_for_seconds, elapsed_s),
        )

    def worker(self, loop: LearnerLoop) -> LearnerWorker:
        """The process that runs the loop."""
        setup, is_first = self.setup, self.agreement.ranks.rank == 0
        return LearnerWorker(
            loop,
            setup.control,
            setup.config,
            setup.spec,
            setup.checkpoints,
            self.phases,
            stopping=self.stopping,
            agreement=self.agreement,
            saves=is_first or (setup.plan.replay is not None and setup.config.save_replay),
            policy_idx=setup.policy_idx or 0,
        )

    def publisher(self) -> WeightsPublisher:
        channel = WeightsChannel(self.setup.arena)
        if self.setup.plan.inference_mode == "central":
            channel.allocate_on_device(self.device)
        return WeightsPublisher(channel, 0 if self.setup.plan.replay is not None else self.setup.plan.forced_lag)

    def on_policy_learner(self) -> OnPolicyLearner:
        """The learner of trajectories, in the state to begin with."""
        setup = self.setup
        model = make_acting_model(setup.spec, setup.with_policy_seed(setup.config))
        assert isinstance(model, ActorCritic)
        store = ParameterStore(self.agreement.ranks)
        learner = OnPolicyLearner(model, setup.with_policy_seed(setup.learner_config), self.device, store)
        if self.saved is not None:
            begin_with(learner, self.saved)
        self.take_state_of_first(learner)
        return learner

    def take_state_of_first(self, learner: OnPolicyLearner | ReplayLearner) -> None:
        """Copies weights, optimizer state and statistics from rank 0; each rank keeps its own random generator."""
        ranks = self.agreement.ranks
        if ranks.num_ranks == 1:
            return
        state = learner.state_dict()
        own = {"generator": state.optimizer["generator"]}
        for tensors in (state.model, state.optimizer):
            for name in sorted(tensors.keys() - own.keys()):
                tensors[name] = ranks.take_from_first(tensors[name].to(learner.device)).cpu()
        names = sorted(state.scalars)
        numbers = torch.tensor([state.scalars[name] for name in names], dtype=torch.float64, device=learner.device)
        scalars: dict[str, int | float] = dict(zip(names, ranks.take_from_first(numbers).tolist(), strict=True))
        learner.load_state_dict(LearnerState(state.model, {**state.optimizer, **own}, scalars))


def _build_trajectory_loop(
    parts: _LearnerParts,
    learner: OnPolicyLearner,
    source: DatasetSource,
    batcher: DatasetRoom,
    look: Callable[[], None] | None,
    publishes_passes: bool = True,
) -> TrajectoryLoop:
    setup, saved = parts.setup, parts.saved
    before = {} if saved is None or setup.resume_from is None else saved.scalars
    trained_steps = None
    if setup.plan.num_policies > 1:
        assert setup.policy_idx is not None
        trained_steps = TrainedSteps(setup.arena, setup.policy_idx, setup.plan.num_policies)
    turn = before.get("population_turn")
    return TrajectoryLoop(
        learner=learner,
        source=source,
        batcher=batcher,
        publisher=parts.publisher(),
        config=setup.config,
        phases=parts.phases,
        env_steps=setup.first_env_steps,
        num_samples=int(before.get("num_samples", 0)),
        agent_steps=int(before.get("agent_steps", 0)),
        agreement=parts.agreement,
        control=setup.control,
        stopping=parts.stopping,
        look=look,
        policies=trained_steps,
        read_weights=_reader_of_weights(setup, learner.block_size) if setup.config.with_pbt else None,
        population_turn=None if turn is None else int(turn),
        publishes_passes=publishes_passes,
    )


def _reader_of_weights(setup: RunSetup, block_size: int) -> Callable[[int], Tensor | None]:
    """The function that reads the weights that a learner takes over: of another policy, or from a file."""

    def read(source: int) -> Tensor | None:
        if source == FROM_FILE:
            try:
                return torch.from_numpy(np.load(setup.checkpoints / TAKEOVER_FILE))
            except (OSError, ValueError) as error:
                log.warning("the weights of the other run were not taken over: %s", error)
                return None
        block = torch.empty(block_size)
        published = WeightsChannel(setup.arena.scoped(policy_prefix(source))).read(block.numpy(), seen=0)
        return None if published is None else block

    return read


def _build_replay_loop(
    parts: _LearnerParts, replay: ReplayPlan, stripes: ReplayStripes, waker: Waker | None, workers: Sequence[Waker]
) -> tuple[ReplayLoop, ReplayLearner]:
    setup, saved, ranks = parts.setup, parts.saved, parts.agreement.ranks
    config, plan = setup.learner_config, setup.plan
    algorithm = config.algorithm
    make_learner = algorithm.make_recurrent_learner if config.use_rnn else algorithm.make_learner
    learner: ReplayLearner = imported(make_learner)(
        make_acting_model(setup.spec, config), config, setup.spec, parts.device, ParameterStore(ranks)
    )
    sampling: dict[str, Any] = {
        "n_step": config.n_step,
        "gamma": config.gamma,
        "reward_scale": config.reward_scale,
        "reward_clip": config.reward_clip,
        "seed": setup.seed,
        "device": parts.device,
    }
    is_restored = saved is not None and stripes.num_held_steps > 0
    if replay.is_prioritized:
        largest = float(saved.scalars.get("max_priority", 0.0)) if saved is not None and is_restored else 0.0
        powers = config.prioritized_replay_alpha, config.prioritized_replay_beta
        sampler: ReplaySampler = PrioritizedSampler(stripes, *powers, largest, **sampling)
    elif replay.her_goals > 0:
        sampler = HindsightSampler(stripes, setup.spec.observation, **sampling)
    elif config.use_rnn:
        sampler = SequenceSampler(stripes, plan.recurrence, config.burn_in, **sampling)
    else:
        sampler = ReplaySampler(stripes, **sampling)
    chooses_threads = config.learner_threads == "auto" and not plan.serial_mode and plan.device == "cpu"
    share = math.ceil((config.train_for_env_steps - setup.first_env_steps) / ranks.num_ranks)
    most_env_steps = share + stripes.total_env_steps()
    return_scale = None
    if config.normalize_rewards:
        return_scale = ReturnScale(stripes, config.value_limit if config.value_bins else None, ranks)
    limiter = _build_limiter(ReplayLimits(setup.arena), replay, stripes, plan, most_env_steps)
    if saved is not None:
        begin_with(learner, saved)
        if return_scale is not None and saved.is_whole:
            return_scale.load_state_dict({name: saved.scalars[f"return_{name}"] for name in return_scale.state_dict()})
        if is_restored:
            sampler.generator.set_state(saved.optimizer["replay_generator"])
            limiter.load_state_dict({name: saved.scalars[f"limiter_{name}"] for name in limiter.state_dict()})
            if (missing := sampler.num_missing_rows) > 0:  # of more environments than before, or for longer transitions
                limiter.begin_after(missing * stripes.num_envs)
    parts.take_state_of_first(learner)
    if return_scale is not None:
        return_scale.take_from_first()
    loop = ReplayLoop(
        learner=learner,
        stripes=stripes,
        sampler=sampler,
        limiter=limiter,
        publisher=parts.publisher(),
        waker=waker,
        workers=workers,
        control=setup.control,
        config=config,
        phases=parts.phases,
        first_env_steps=setup.first_env_steps,
        threads=ThreadChoice(plan.learner_threads) if chooses_threads else None,
        agreement=parts.agreement,
        most_env_steps=share,
        return_scale=return_scale,
    )
    return loop, learner


def _build_limiter(
    limits: ReplayLimits, replay: ReplayPlan, stripes: ReplayStripes, plan: ResourcePlan, most_env_steps: int
) -> ReplayLimiter:
    if plan.num_remote_hosts == 0:
        is_async = plan.async_rl and not plan.serial_mode
        return ReplayLimiter(limits, replay, stripes, is_async, most_env_steps)
    remote = plan.num_local_splits, plan.remote_rows_in_flight
    return RemoteReplayLimiter(limits, replay, stripes, plan.async_rl, most_env_steps, *remote)


def build_evaluation_workers(setup: RunSetup) -> list[EvaluationWorker | VideoWorker]:
    """An evaluation for each policy; one process serves all."""
    return [
        EvaluationWorker(team, setup.control, each.checkpoints, setup.first_env_steps, policy_idx)
        for policy_idx, (each, team) in enumerate(_published_teams(setup))
    ]


def build_video_workers(setup: RunSetup) -> list[EvaluationWorker | VideoWorker]:
    """The recorder of all policies' videos, if videos are wanted. Its own process, because drawing may crash one."""
    if setup.config.video_every_env_steps is None:
        return []
    teams = [team for _, team in _published_teams(setup)]
    return [VideoWorker(teams, setup.control, setup.checkpoints.parent / VIDEOS, setup.first_env_steps)]


def _published_teams(setup: RunSetup) -> list[tuple[RunSetup, PublishedTeam]]:
    """The parts of the run that belong to each policy, and who plays whole episodes with it during training.

    With `--policy_mapping=independent` each agent is played by its own policy. Otherwise the policy itself plays all
    agents of its spaces, and the first policy of their spaces plays each of the others.
    """
    setups = [setup.of_policy(idx) for idx in range(setup.plan.num_policies)]
    policies = [PublishedPolicy(each.config, each.spec, WeightsChannel(each.arena)) for each in setups]
    first = {agent: policy for policy in reversed(policies) for agent in policy.spec.own_agents}

    def team_of(policy: PublishedPolicy) -> PublishedTeam:
        if setup.config.maps_policies == "independent":
            players = dict(enumerate(policies))
        else:
            players = {**first, **dict.fromkeys(policy.spec.own_agents, policy)}
        return PublishedTeam(policy, {agent: player for agent, player in players.items() if player is not policy})

    return [(each, team_of(policy)) for each, policy in zip(setups, policies, strict=True)]
