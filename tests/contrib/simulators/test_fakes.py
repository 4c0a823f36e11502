"""Adapters of simulators that do not run here, against fakes of the interfaces that they document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from contrib.simulators.fake_simulators import (
    LIMIT,
    FakeIsaacLabEnv,
    FakeManiSkillEnv,
    FakeManiSkillVectorEnv,
    FakeMjlabEnv,
    install_fakes,
)
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from run_helper import run
from tensor_groups import CPU, NumberedSentinel, sentinels

from asyncrl.config.errors import UsageError
from asyncrl.contrib.simulators.isaaclab import IsaacLabEnv
from asyncrl.contrib.simulators.maniskill import ManiSkillEnv
from asyncrl.contrib.simulators.wrapping import wrap
from asyncrl.envs.factory import as_vector_env
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.tensors import TensorsOfArrays
from asyncrl.modes.tensors.env_group import TensorEnvGroup

NO_END = torch.full((2, 1), -1.0)


def group_of(env: Any) -> TensorEnvGroup:
    spec = spec_of_spaces(env.single_observation_space, env.single_action_space, "Fake", None)
    return TensorEnvGroup(env, 0, spec, "raw", CPU)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    install_fakes(monkeypatch)


@pytest.mark.parametrize(
    ("made", "wrapper"),
    [
        (FakeIsaacLabEnv(2), IsaacLabEnv),
        (FakeMjlabEnv(2), IsaacLabEnv),
        (FakeManiSkillEnv(2), ManiSkillEnv),
        (FakeManiSkillVectorEnv(FakeManiSkillEnv(2)), ManiSkillEnv),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else type(each).__name__,
)
def test_simulators_are_recognized_by_their_classes(made: Any, wrapper: type) -> None:
    env = as_vector_env(made, "module:make", 2)
    assert type(env) is wrapper
    assert (env.num_envs, env.metadata["autoreset_mode"]) == (2, AutoresetMode.SAME_STEP)


def test_other_results_are_refused() -> None:
    with pytest.raises(
        UsageError, match="is expected, or an environment of brax, isaaclab, maniskill, mjlab, playground"
    ):
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
    assert not group.step(actions).valid[0], "the row of the time-out is not a sample"
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
    finished = run(
        tmp_path, "serial", "contrib.simulators.fake_simulators:make_isaac_like", **settings, train_for_env_steps=1000
    )
    assert finished.outcome.env_steps >= 1000


def test_arrays_are_wrapped_by_name() -> None:
    env = wrap("gymnasium.vector", sentinels(AutoresetMode.SAME_STEP), device="cpu")
    assert isinstance(env, TensorsOfArrays) and isinstance(env.unwrapped, SyncVectorEnv)
