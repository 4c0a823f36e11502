"""Adapters of simulators that do not run here, against fakes of the interfaces that they document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from probe_envs import EndlessReward
from run_helper import run
from simulators import (
    LIMIT,
    FakeIsaacLabEnv,
    FakeManiSkillEnv,
    FakeManiSkillVectorEnv,
    FakeMjlabEnv,
    install_fakes,
)
from tensor_groups import CPU, NUM_ENVS, NumberedSentinel, sentinels

from asyncrl.config.errors import UsageError
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.integrations import as_vector_env, find_kind, wrap
from asyncrl.integrations.arrays import TensorsOfArrays
from asyncrl.on_device.env_group import TensorEnvGroup

NO_END = torch.full((2, 1), -1.0)


def group_of(env: Any) -> TensorEnvGroup:
    spec = spec_of_spaces(env.single_observation_space, env.single_action_space, "Fake", None)
    return TensorEnvGroup(env, 0, spec, "raw", CPU)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fakes(monkeypatch)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (FakeIsaacLabEnv(2), "isaaclab"),
        (FakeMjlabEnv(2), "mjlab"),
        (FakeManiSkillEnv(2), "maniskill"),
        (FakeManiSkillVectorEnv(FakeManiSkillEnv(2)), "maniskill"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_simulators_are_recognized_by_their_classes(made: Any, kind: str) -> None:
    assert find_kind(made) == kind
    env = as_vector_env(made, "module:make", 2)
    assert (env.num_envs, env.metadata["autoreset_mode"]) == (2, AutoresetMode.SAME_STEP)


def test_other_results_are_refused() -> None:
    vectorized = sentinels(AutoresetMode.SAME_STEP)
    assert find_kind(vectorized) is None and as_vector_env(vectorized, "module:make", NUM_ENVS) is vectorized
    with pytest.raises(UsageError, match=r"module:make returned NumberedSentinel, but a gymnasium\.vector\.VectorEnv"):
        as_vector_env(NumberedSentinel(0), "module:make", 2)
    with pytest.raises(UsageError, match="made 2 environments, but num_envs=3 was asked for"):
        as_vector_env(FakeIsaacLabEnv(2), "module:make", 3)
    with pytest.raises(UsageError, match=r"There is no simulator gazebo \(known: isaaclab, mjlab"):
        wrap("gazebo", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["isaaclab", "mjlab"])
def test_a_time_out_of_isaac_lab_is_bootstrapped_from_the_observation_before(kind: Any) -> None:
    inner = {"isaaclab": FakeIsaacLabEnv, "mjlab": FakeMjlabEnv}[kind](2)
    env = wrap(kind, inner)
    assert isinstance(env.single_observation_space, Dict)
    group = group_of(env)
    assert group.reset().tolist() == [[0.0] * 3] * 2
    actions = NO_END.clone()
    actions[1] = 1.0  # the second environment terminates in each step
    for row in range(1, LIMIT + 1):
        step = group.step(actions)
        assert step.reward.tolist() == [row, 1.0]
        assert step.terminated.tolist() == [False, True]
        assert step.truncated.tolist() == [row == LIMIT, False]
        assert step.next_rows[1].tolist() == [0.0] * 3, "a new episode after a termination"
        assert step.next_rows[0].tolist() == [min(row, LIMIT - 1)] * 3, "the observation before the time-out"
    group.record_ends([step.ends], int(step.ends.ended.sum()))
    first, second = group.take_episodes()
    assert (first.episode_return, first.length, second.length) == (15.0, 5, 1)
    assert first.extra_stats == {"Episode_Reward/steps": 3.0, "Episode_Termination/time_out": 1.5}
    assert not group.step(actions).valid[0], "the row of the time-out is no sample"
    env.close()
    assert inner.is_closed


def test_wrappers_around_isaac_lab_are_kept() -> None:
    class Environment(FakeIsaacLabEnv, gymnasium.Env):  # type: ignore[type-arg]
        pass

    class Tenfold(gymnasium.Wrapper):  # type: ignore[type-arg]
        def step(self, action: Any) -> Any:
            obs, reward, *rest = self.env.step(action)
            return obs, 10.0 * reward, *rest

    inner = Environment(2)
    env = wrap("isaaclab", Tenfold(inner))
    group = group_of(env)
    group.reset()
    assert [group.step(NO_END).reward.tolist() for _ in range(2)] == [[10.0, 10.0], [20.0, 20.0]]
    env.close()
    assert inner.is_closed


def test_a_single_group_of_observations_is_no_dict() -> None:
    env = wrap("isaaclab", FakeIsaacLabEnv(2, has_critic=False))
    assert isinstance(env.single_observation_space, Box)
    assert env.reset()[0].shape == (2, 1)


def test_maniskills_final_observation_and_success_are_used() -> None:
    group = group_of(as_vector_env(FakeManiSkillEnv(2), "module:make", 2))
    group.reset()
    for row in range(1, LIMIT + 1):
        actions = NO_END.clone()
        actions[1] = 1.0 if row == 3 else -1.0
        step = group.step(actions)
        group.record_ends([step.ends], int(step.ends.ended.sum()))
    assert step.truncated.tolist() == [True, False]
    assert step.next_rows.tolist() == [[LIMIT], [LIMIT - 3]], "the true final observation"
    episodes = group.take_episodes()
    assert [(each.length, each.extra_stats) for each in episodes] == [
        (3, {"is_success": 1.0}),
        (5, {"is_success": 0.0}),
    ]


def test_a_policy_of_an_asymmetric_simulator_is_trained(tmp_path: Path) -> None:
    settings = {"env_backend": "tensor", "num_workers": 1, "num_envs_per_worker": 16, "critic_only_keys": ["critic"]}
    finished = run(tmp_path, "serial", "simulators:make_isaac_like", **settings, train_for_env_steps=1000)
    assert finished.outcome.env_steps >= 1000


@pytest.mark.parametrize("mode", AutoresetMode)
def test_arrays_become_tensors(mode: AutoresetMode) -> None:
    env = wrap("gymnasium.vector", sentinels(mode))
    assert isinstance(env.unwrapped, SyncVectorEnv) and env.metadata["autoreset_mode"] == mode
    group = group_of(env)
    assert group.reset().shape == (NUM_ENVS, 3)
    for _ in range(40):
        step = group.step(torch.zeros(NUM_ENVS, 2))
        group.record_ends([step.ends], int(step.ends.ended.sum()))
    assert {tuple(each.extra_stats) for each in group.take_episodes()} >= {("number", "is_success")}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_is_no_number_leaves_the_numbers_beside_it(mode: AutoresetMode) -> None:
    class Telling(EndlessReward):
        def step(self, action: Any) -> Any:
            *result, info = super().step(action)
            told = {"is_success": np.bool_(True), "reason": "fell", "nothing": None}
            stats = {"laps": np.float32(3.0), "name": "of the map"}
            return *result, {**info, **told, "episode_extra_stats": stats}

    makers = [lambda length=length: Telling(terminates=True, length=length) for length in (2, 3)]
    group = group_of(wrap("gymnasium.vector", SyncVectorEnv(makers, autoreset_mode=mode)))
    group.reset()
    for _ in range(12):
        step = group.step(torch.zeros(2, dtype=torch.int64))
        group.record_ends([step.ends], int(step.ends.ended.sum()))
    episodes = group.take_episodes()
    assert {each.length for each in episodes} == {2, 3}
    assert all(each.extra_stats == {"laps": 3.0, "is_success": 1.0} for each in episodes)


def test_final_observations_may_be_one_batch() -> None:
    class Batched(VectorWrapper):
        def step(self, actions: Any) -> Any:
            obs, *others, _ = self.env.step(actions)
            return {"a": obs}, *others, {"final_obs": {"a": obs + 1.0}, "_final_obs": np.ones(NUM_ENVS, bool)}

    env = TensorsOfArrays(Batched(sentinels(AutoresetMode.SAME_STEP)))
    env.reset()
    obs, _, _, _, infos = env.step(torch.zeros(NUM_ENVS, 2))
    assert torch.equal(infos["final_obs"]["a"], obs["a"] + 1.0)
