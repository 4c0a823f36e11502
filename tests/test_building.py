"""What roles are built with: random numbers of their own, and others when a run continues; the parts of a replay."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from small_runs import BOX, CHOICE, planned, replay_loop, small_arena

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.prioritized_sampler import PrioritizedSampler
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.modes.trajectories.roles import TrajectoryRoles
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.torchrun import RankAddress
from asyncrl.run.setup import RunSetup

CONFIG = TrainConfig(encoder_mlp_layers=[8])
PLAN = planned(batch_size=24, num_workers=2, num_envs_per_worker=3)


def test_every_actor_explores_in_its_own_way_and_in_another_after_a_stop() -> None:
    model = ActorCritic(BOX, CONFIG)
    arena, slots = small_arena(PLAN, BOX, block_size(model))
    slots.obs[:] = 0.0
    block = torch.empty(block_size(model))
    write_block(model, FlatParameters(model), block)
    WeightsChannel(arena).publish(np.asarray(block), version=0, env_steps=0)
    new = RunSetup(CONFIG, PLAN, BOX, arena, Path(), None, 0)
    resumed = dataclasses.replace(new, first_env_steps=1000)
    of_other_rank = dataclasses.replace(new, rank=RankAddress(2, 3, 2, 3, "localhost", 0, False, "test"))

    def actions(setup: RunSetup, actor_idx: int) -> list[float]:
        policy = TrajectoryRoles().acting_policy(setup, torch.device("cpu"), actor_idx, PhaseTimer())
        policy.answer([(0, 0)])
        return list(TrajectorySlots(arena).action[0, 0].flatten())

    assert actions(new, 0) == actions(new, 0)
    different = [actions(new, 0), actions(new, 1), actions(resumed, 0), actions(resumed, 1)]
    different += [actions(of_other_rank, 0), actions(of_other_rank, 1)]
    assert len({tuple(drawn) for drawn in different}) == 6


def test_rewards_are_divided_if_they_are_to_be(tmp_path: Path) -> None:
    scale = replay_loop(BOX, tmp_path, algo="sac", normalize_rewards=True)._return_scale
    assert isinstance(scale, ReturnScale) and scale._limit is None
    assert replay_loop(BOX, tmp_path, algo="sac")._return_scale is None


def test_prioritized_replay_draws_by_alpha_and_weighs_by_beta(tmp_path: Path) -> None:
    powers = {"prioritized_replay_alpha": 0.6, "prioritized_replay_beta": 0.3}
    loop = replay_loop(CHOICE, tmp_path, algo="dqn", prioritized_replay=True, **powers)
    sampler = loop._sampler
    assert isinstance(sampler, PrioritizedSampler) and loop._prioritized is sampler
    assert (sampler._alpha, sampler.beta) == (0.6, 0.3)
