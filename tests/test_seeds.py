"""Random streams: those of ranks, of neighbouring seeds, and of everything that one process draws, are unrelated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box
from small_runs import BOX, ScriptedEnv, planned, small_arena

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.ranks import Ranks
from asyncrl.learner.sac import SacLearner
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.modes import roles
from asyncrl.modes.trajectories.roles import TrajectoryRoles
from asyncrl.observers.reports import PhaseTimer
from asyncrl.processes.seeding import (
    Stream,
    derive_seed,
    rank_seed,
    restoring_global_generators,
    seed_global_generators,
)
from asyncrl.processes.torchrun import RankAddress
from asyncrl.rollout import build_env_group as rollout_building
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.failures import FailureLog, Recovery
from asyncrl.run.setup import RunSetup

CPU = torch.device("cpu")
PLAN = planned(batch_size=24, num_workers=2, num_envs_per_worker=3)


class _NumberedRanks(Ranks):
    def __init__(self, rank: int) -> None:
        self.rank = rank


def setup_of(seed: int, rank: int) -> RunSetup:
    config = TrainConfig(env="CartPole-v1", encoder_mlp_layers=[4], seed=seed)
    arena, _ = small_arena(PLAN)
    address = RankAddress(rank, 2, rank, 2, "localhost", 0, False, "test")
    return RunSetup(config, PLAN, BOX, arena, Path(), None, 0, rank=address)


def seeds_of(seed: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The seed of each stream that one rank draws from."""
    setup, found = setup_of(seed, rank), {}

    class NotingGroup:
        def __init__(self, envs: Any, seeds: list[int], *rest: Any) -> None:
            found.update({f"environment {rest[0] + idx}": own for idx, own in enumerate(seeds)})

        def stagger_episodes(self) -> None: ...

    monkeypatch.setattr(rollout_building, "EnvGroup", NotingGroup)
    monkeypatch.setattr(rollout_building, "make_run_env", lambda *args, **kwargs: None)
    failures = FailureLog(0, setup.config, setup.control)
    for split in range(2):
        rollout_building.build_env_group(setup.config, PLAN, BOX, split, setup.seed, 0, failures)
    monkeypatch.setattr(roles, "ActingPolicy", lambda **parts: found.update({f"actor {len(found)}": parts["seed"]}))
    for actor in range(2):
        TrajectoryRoles().acting_policy(setup, CPU, actor, PhaseTimer())
    storage = ParameterStore(_NumberedRanks(rank))
    on_policy = OnPolicyLearner(ActorCritic(BOX, setup.config), setup.config, CPU, storage)
    found["learner"] = on_policy._generator.initial_seed()
    off_policy = SacLearner(SacActor(BOX, setup.config), setup.config, BOX, CPU, storage)
    assert off_policy._generator.initial_seed() == found["learner"]  # a run has one of both
    found["replay"] = derive_seed(setup.seed, Stream.REPLAY)
    found["warm-up"] = derive_seed(found["actor 6"], Stream.WARM_UP)
    return found


def test_no_two_streams_are_the_same_in_ranks_of_neighbouring_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        (seed, rank, name): own
        for seed in range(4)
        for rank in range(4)
        for name, own in seeds_of(seed, rank, monkeypatch).items()
    }
    assert len(found) == 4 * 4 * 11
    assert len(set(found.values())) == len(found)
    assert set(found.values()).isdisjoint(range(100))


def test_rank_0_draws_what_a_run_of_one_process_draws() -> None:
    assert setup_of(3, 0).seed == dataclasses.replace(setup_of(3, 0), rank=None).seed == 3
    assert rank_seed(3, 1) not in (0, 1, 2, 3, 4)
    assert rank_seed(2**31 - 1, 7) == rank_seed(2**31 - 1, 7) < 2**32


def test_critics_do_not_begin_with_the_draws_of_another_seeds_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    manual_seed = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeds.append(seed) or manual_seed(seed))
    for seed in range(3):
        config = TrainConfig(encoder_mlp_layers=[4], seed=seed)
        SacActor(BOX, config)
        TwinCritic(BOX, config)
    assert len(set(seeds)) == 6


def test_a_recreated_environment_samples_other_values_from_its_spaces() -> None:
    setup = setup_of(0, 0)
    setup.control.has_finished_episode = True

    def make() -> ScriptedEnv:
        env = ScriptedEnv([RuntimeError()])
        env.action_space = Box(-1.0, 1.0)
        return env

    def samples(seed: int) -> list[float]:
        recovery = Recovery(FailureLog(0, setup.config, setup.control), make, lambda env_idx, steps: 50 + steps)
        group = EnvGroup([make()], [seed], 0, BOX, "clip", recovery)
        first = float(group.envs[0].action_space.sample()[0])
        group._recreate(0)
        return [first, float(group.envs[0].action_space.sample()[0])]

    assert samples(3) == samples(3)
    assert len({*samples(3), *samples(4)}) == 3  # the same successor


def test_generators_of_gpus_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    of_gpu, seeds = torch.Generator(), []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: (of_gpu.manual_seed(seed), seeds.append(seed)))
    torch.manual_seed(7)
    with restoring_global_generators():
        seed_global_generators(1)
    assert seeds == [7, 1, 7]  # nobody had used a GPU: it has the seed of before
    monkeypatch.setattr(torch.cuda, "default_generators", (of_gpu,))
    before = of_gpu.get_state()
    with restoring_global_generators():
        seed_global_generators(1)
        torch.rand(3, generator=of_gpu)
    assert torch.equal(of_gpu.get_state(), before)
