"""The parts of learners that several modes have: ranks, checkpoints, and the two loops."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.buffers.control import FROM_FILE, LAST_TURN, TAKEOVER_FILE, TrainedSteps
from asyncrl.buffers.layout import policy_prefix
from asyncrl.buffers.messages import Waker
from asyncrl.buffers.replay import ReplayLimiter, ReplayLimits, ReplayStripes
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.algorithms import imported
from asyncrl.config.critic_kinds import critic_kind
from asyncrl.config.plan import ReplayPlan
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.prioritized_sampler import PrioritizedSampler
from asyncrl.learner.ranks import ProcessGroupRanks, RankConsensus, Ranks
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.replay_loop import ReplayLoop
from asyncrl.learner.replay_sampler import ReplaySampler
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.learner.state import LearnerState
from asyncrl.learner.threads import ThreadChoice
from asyncrl.learner.trajectory_loop import DatasetRoom, DatasetSource, TrainedBefore, TrajectoryLoop
from asyncrl.learner.transfer import begin_with
from asyncrl.learner.worker import LearnerContext, LearnerLoop, LearnerWorker, StopCondition, WeightsPublisher
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model
from asyncrl.processes.memory import keep_freed_memory
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.run.setup import RunSetup, state_to_begin_with
from asyncrl.storage.checkpoint import load_state

log = logging.getLogger(__name__)


def own_device(name: str) -> torch.device:
    """The device of a role, which becomes the default device of this process."""
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


@dataclass
class LearnerParts:
    """Parts that every learner has."""

    setup: RunSetup
    device: torch.device
    saved: LearnerState | None
    context: LearnerContext

    @classmethod
    @with_own_settings
    def begin(cls, setup: RunSetup) -> LearnerParts:
        """Connects to other ranks and loads the checkpoint that the run begins with."""
        device = own_device(setup.plan.device)
        if device.type == "cpu" and setup.spec.observation.has_images:
            keep_freed_memory()
        ranks = Ranks() if setup.rank is None else ProcessGroupRanks(setup.rank, device)
        saved = state_to_begin_with(setup)
        is_resumed = setup.resume_from is not None and saved is not None
        elapsed_s = float(saved.scalars["elapsed_s"]) if saved is not None and is_resumed else 0.0
        # Policies may have saved at different times, or not at all, and end at the same one.
        starts = (path for path, _ in setup.policy_starts if path is not None)
        elapsed_s = max([elapsed_s, *(float(load_state(path)["elapsed_s"]) for path in starts)])
        # Only rank 0 is sure to have a checkpoint.
        elapsed_s = float(ranks.take_from_first(torch.tensor(elapsed_s, dtype=torch.float64, device=device)))
        return cls(
            setup=setup,
            device=device,
            saved=saved,
            context=LearnerContext(
                setup.config,
                setup.control,
                StopCondition(
                    setup.control, setup.config.train_for_seconds, elapsed_s, setup.config.train_for_env_steps
                ),
                agreement=RankConsensus(ranks, setup.control, setup.hyperparameters),
            ),
        )

    def worker(self, loop: LearnerLoop) -> LearnerWorker:
        """The process that runs the loop."""
        setup, is_first = self.setup, self.context.agreement.ranks.rank == 0
        return LearnerWorker(
            loop,
            self.context,
            setup.spec,
            setup.checkpoints,
            saves=is_first or (setup.plan.replay is not None and setup.config.save_replay),
            policy_idx=setup.policy_idx or 0,
        )

    def publisher(self) -> WeightsPublisher:
        channel = WeightsChannel(self.setup.arena)
        if self.setup.plan.inference_mode == "central":
            channel.allocate_on_device(self.device)
        return WeightsPublisher(channel, 0 if self.setup.plan.replay is not None else self.setup.plan.forced_lag)

    @with_own_settings
    def on_policy_learner(self) -> OnPolicyLearner:
        """The learner of trajectories, in the state to begin with."""
        setup = self.setup
        model = make_acting_model(setup.spec, setup.with_policy_seed(setup.config))
        assert isinstance(model, ActorCritic)
        config, store = setup.with_policy_seed(setup.learner_config), ParameterStore(self.context.agreement.ranks)
        make_learner = config.algorithm.make_learner
        kind = OnPolicyLearner if make_learner is None else imported(make_learner)
        learner: OnPolicyLearner = kind(model, config, self.device, store)
        if self.saved is not None:
            begin_with(learner, self.saved)
        self.take_state_of_first(learner)
        return learner

    def take_state_of_first(self, learner: OnPolicyLearner | ReplayLearner) -> None:
        """Copies weights, optimizer state and statistics from rank 0; each rank keeps its own random generator."""
        ranks = self.context.agreement.ranks
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


@with_own_settings
def build_trajectory_loop(
    parts: LearnerParts,
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
    turn = before.get(LAST_TURN)
    return TrajectoryLoop(
        learner=learner,
        source=source,
        batcher=batcher,
        publisher=parts.publisher(),
        context=parts.context,
        trained=TrainedBefore(
            env_steps=setup.first_env_steps,
            num_samples=int(before.get("num_samples", 0)),
            agent_steps=int(before.get("agent_steps", 0)),
            last_turn=None if turn is None else int(turn),
        ),
        look=look,
        policies=trained_steps,
        read_weights=_reader_of_weights(setup, learner.block_size),
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


@with_own_settings
def build_replay_loop(
    parts: LearnerParts, replay: ReplayPlan, stripes: ReplayStripes, waker: Waker | None, workers: Sequence[Waker]
) -> tuple[ReplayLoop, ReplayLearner]:
    setup, saved, ranks = parts.setup, parts.saved, parts.context.agreement.ranks
    config, plan = setup.learner_config, setup.plan
    learner: ReplayLearner = imported(replay.kind.learner or config.algorithm.make_learner)(
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
    elif replay.kind.sampler is not None:
        sampling |= replay.kind.sampler_arguments
        sampler = imported(replay.kind.sampler)(stripes, setup.spec.observation, **sampling)
    else:
        sampler = ReplaySampler(stripes, **sampling)
    chooses_threads = config.learner_threads == "auto" and not plan.serial_mode and plan.device == "cpu"
    share = math.ceil((config.train_for_env_steps - setup.first_env_steps) / ranks.num_ranks)
    most_env_steps = share + stripes.total_env_steps()
    return_scale = None
    if config.normalize_rewards:
        return_scale = ReturnScale(stripes, critic_kind(config).largest_return, ranks)
    limiter_type: Any = imported(plan.remote.limiter)
    limiter: ReplayLimiter = limiter_type.from_plan(ReplayLimits(setup.arena), replay, stripes, plan, most_env_steps)
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
        context=dataclasses.replace(parts.context, config=config),
        first_env_steps=setup.first_env_steps,
        threads=ThreadChoice(plan.learner_threads) if chooses_threads else None,
        most_env_steps=share,
        return_scale=return_scale,
    )
    return loop, learner
