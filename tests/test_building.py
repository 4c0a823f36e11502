"""What roles are built with: random numbers of their own, and others when a run goes on; the parts of a replay."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BOX, CHOICE, CountingWaker, planned, small_arena

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.prioritized_sampler import PrioritizedSampler
from asyncrl.learner.replay_loop import ReplayLoop
from asyncrl.learner.return_scale import ReturnScale
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.modes.replay.roles import ReplayRoles
from asyncrl.modes.trajectories.roles import TrajectoryRoles
from asyncrl.monitoring.reports import PhaseTimer
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
        policy = TrajectoryRoles().acting_policy(setup, torch.device("cpu"), actor_idx, PhaseTimer())
        policy.answer([(0, 0)])
        return list(TrajectorySlots(arena).action[0, 0].flatten())

    assert actions(new, 0) == actions(new, 0)
    different = [actions(new, 0), actions(new, 1), actions(resumed, 0), actions(resumed, 1)]
    different += [actions(of_other_rank, 0), actions(of_other_rank, 1)]
    assert len({tuple(drawn) for drawn in different}) == 6


def replay_loop(spec: EnvSpec, folder: Path, **settings: Any) -> ReplayLoop:
    """The loop of a new run."""
    sizes: dict[str, Any] = {"num_workers": 1, "num_envs_per_worker": 2, "encoder_mlp_layers": [8]}
    config = TrainConfig(serial_mode=True, device="cpu", replay_size=100, batch_size=8, **sizes, **settings)
    setup = RunSetup.create(config, resolve(config, Machine(cores=4)), spec, folder)
    waker: Any = CountingWaker()
    loop = ReplayRoles().learner(setup, waker, [])[0]._loop
    assert isinstance(loop, ReplayLoop)
    return loop


@pytest.mark.parametrize("num_bins", [None, 11])
def test_returns_are_kept_within_the_bins_where_there_are_any(num_bins: int | None, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algo": "sac", "value_bins": num_bins, "value_limit": 3.0}
    scale = replay_loop(BOX, tmp_path, normalize_rewards=True, **settings)._return_scale
    assert isinstance(scale, ReturnScale)
    assert scale._limit == (None if num_bins is None else 3.0)
    assert replay_loop(BOX, tmp_path, **settings)._return_scale is None


def test_prioritized_replay_draws_by_alpha_and_weighs_by_beta(tmp_path: Path) -> None:
    powers = {"prioritized_replay_alpha": 0.6, "prioritized_replay_beta": 0.3}
    loop = replay_loop(CHOICE, tmp_path, algo="dqn", prioritized_replay=True, **powers)
    sampler = loop._sampler
    assert isinstance(sampler, PrioritizedSampler) and loop._prioritized is sampler
    assert (sampler._alpha, sampler.beta) == (0.6, 0.3)
