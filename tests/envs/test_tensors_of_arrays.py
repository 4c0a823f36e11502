"""A vectorized environment of arrays becomes one of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from probe_envs import EndlessReward
from tensor_groups import CPU, NUM_ENVS, sentinels

from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.envs.tensors import TensorsOfArrays
from asyncrl.modes.tensors.env_group import TensorEnvGroup


def group_of(env: Any) -> TensorEnvGroup:
    spec = spec_of_spaces(env.single_observation_space, env.single_action_space, "Fake", None)
    return TensorEnvGroup(env, 0, spec, "raw", CPU)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_arrays_become_tensors(mode: AutoresetMode) -> None:
    env = TensorsOfArrays(sentinels(mode))
    assert isinstance(env.unwrapped, SyncVectorEnv) and env.metadata["autoreset_mode"] == mode
    group = group_of(env)
    assert group.reset().shape == (NUM_ENVS, 3)
    for _ in range(40):
        step = group.step(torch.zeros(NUM_ENVS, 2))
        group.record_ends([step.ends], int(step.ends.ended.sum()))
    assert {tuple(each.extra_stats) for each in group.take_episodes()} >= {("number", "is_success")}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_values_of_infos_that_are_not_numbers_are_left_out(mode: AutoresetMode) -> None:
    class Telling(EndlessReward):
        def step(self, action: Any) -> Any:
            *result, info = super().step(action)
            told = {"is_success": np.bool_(True), "reason": "fell", "nothing": None}
            stats = {"laps": np.float32(3.0), "name": "of the map"}
            return *result, {**info, **told, "episode_extra_stats": stats}

    makers = [lambda length=length: Telling(terminates=True, length=length) for length in (2, 3)]
    group = group_of(TensorsOfArrays(SyncVectorEnv(makers, autoreset_mode=mode)))
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
