"""What roles are built with: random numbers of their own, and others when a run goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from small_runs import BOX, planned, small_arena

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.monitoring.reports import PhaseTimer
from asyncrl.run.build_roles import build_acting_policy
from asyncrl.run.setup import RunSetup
from asyncrl.runtime.torchrun import RankAddress

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
        policy = build_acting_policy(setup, torch.device("cpu"), actor_idx, PhaseTimer())
        policy.answer([(0, 0)])
        return list(TrajectorySlots(arena).action[0, 0].flatten())

    assert actions(new, 0) == actions(new, 0)
    different = [actions(new, 0), actions(new, 1), actions(resumed, 0), actions(resumed, 1)]
    different += [actions(of_other_rank, 0), actions(of_other_rank, 1)]
    assert len({tuple(drawn) for drawn in different}) == 6
