"""Environments of tensors fill rows as others do, in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from tensor_envs import AsTensors
from tensor_groups import CPU, NUM_ENVS, NumberedSentinel, sentinels, tensor_group

from asyncrl.buffers.control import TrainingInfo
from asyncrl.buffers.replay import StepRows
from asyncrl.envs.spaces import read_spec
from asyncrl.modes.tensors.evaluation import EvaluatingGroup
from asyncrl.rollout.failures import EnvironmentCallFailed, WrongObservation
from asyncrl.rollout.vector_env_group import VectorEnvGroup

ROLLOUT, NUM_TRAJECTORIES = 9, 12
FIELDS = ("reward", "terminated", "truncated", "valid")
in_each_mode = pytest.mark.parametrize("mode", AutoresetMode)


def array_group(env: VectorEnv[Any, Any, Any]) -> VectorEnvGroup:
    return VectorEnvGroup(env, 7, 0, read_spec(NumberedSentinel(0), "Sentinels"), "raw")


def new_row(next_obs: np.ndarray) -> StepRows:
    return StepRows(*(np.ones(NUM_ENVS, dtype) for dtype in (np.float32, bool, bool, bool)), next_obs)


@in_each_mode
def test_rows_and_episodes_are_those_of_the_same_environments_as_arrays(mode: AutoresetMode) -> None:
    tensors, arrays = tensor_group(AsTensors(sentinels(mode))), array_group(sentinels(mode))
    actions = np.random.default_rng(0).uniform(-0.6, 0.6, (NUM_TRAJECTORIES, ROLLOUT, NUM_ENVS, 2)).astype(np.float32)
    last, first = np.zeros((2, NUM_ENVS, 3), np.float32)
    arrays.reset(last)
    last_rows, num_begun = tensors.reset(), 0
    for trajectory in range(NUM_TRAJECTORIES):
        if trajectory == NUM_TRAJECTORIES // 2:
            for group in (tensors, arrays):
                group.set_training_info(TrainingInfo({"level": 1}, 7))
        begun = arrays.start_slot(last, first)
        rows, has_begun = tensors.start_trajectory(last_rows)
        assert np.flatnonzero(has_begun.numpy()).tolist() == begun
        np.testing.assert_array_equal(rows.numpy(), first)
        num_begun += len(begun)
        for row in range(ROLLOUT):
            expected = new_row(last)
            arrays.step(actions[trajectory, row], expected)
            step = tensors.step(torch.from_numpy(actions[trajectory, row]))
            for name in FIELDS:
                np.testing.assert_array_equal(getattr(step, name).numpy(), getattr(expected, name))
            last_rows = step.next_rows.clone()
            np.testing.assert_array_equal(last_rows.numpy(), last)
            tensors.record_ends([step.ends], int(step.ends.ended.sum()))
    assert (num_begun > 0) == (mode != AutoresetMode.NEXT_STEP)
    found, wanted = tensors.take_episodes(), arrays.take_episodes()
    told = [episode.training_info for episode in found]
    assert told == [episode.training_info for episode in wanted]
    assert set(told) == {0, 6, 7} and told.count(6) == NUM_ENVS, "an episode of each had begun before the message"
    assert [episode.length for episode in found] == [episode.length for episode in wanted]
    np.testing.assert_allclose(
        [episode.episode_return for episode in found], [episode.episode_return for episode in wanted], atol=1e-5
    )
    assert [episode.extra_stats for episode in found] == [episode.extra_stats for episode in wanted]
    assert {tuple(episode.extra_stats) for episode in found} == {
        ("number", "is_success"),
        ("number", "odd", "is_success"),
    }
    assert len(found) > 20


@in_each_mode
def test_all_episodes_have_a_message_that_comes_before_the_first_reset(mode: AutoresetMode) -> None:
    tensors, arrays = tensor_group(AsTensors(sentinels(mode))), array_group(sentinels(mode))
    for group in (tensors, arrays):
        group.set_training_info(TrainingInfo({"level": 1}, 7))
    last = np.zeros((NUM_ENVS, 3), np.float32)
    tensors.reset()
    arrays.reset(last)
    for _ in range(20):
        step = tensors.step(torch.zeros(NUM_ENVS, 2))
        tensors.record_ends([step.ends], int(step.ends.ended.sum()))
        arrays.step(np.zeros((NUM_ENVS, 2), np.float32), new_row(last))
    for group in (tensors, arrays):
        assert {episode.training_info for episode in group.take_episodes()} == {7}


class Shaped(VectorWrapper):
    """Adds the bonus of each environment to its rewards, and keeps who was told which bonus after how many steps."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.bonus, self.told, self.num_steps = np.zeros(self.num_envs), list[tuple[int, int, float]](), 0

    def set_reward_shaping(self, shaping: Mapping[str, float], agent: int) -> None:
        self.bonus[agent] = shaping["bonus"]
        self.told.append((self.num_steps, agent, shaping["bonus"]))

    def step(self, actions: Any) -> Any:
        obs, reward, *others = self.env.step(actions)
        self.num_steps += 1
        bonus = self.bonus if isinstance(reward, np.ndarray) else torch.from_numpy(self.bonus)
        return obs, reward + bonus, *others


@in_each_mode
def test_an_episode_has_its_reward_shaping_as_in_environments_of_arrays(mode: AutoresetMode) -> None:
    of_tensors, of_arrays = Shaped(AsTensors(sentinels(mode))), Shaped(sentinels(mode))
    tensors, arrays = tensor_group(of_tensors), array_group(of_arrays)
    for group in (tensors, arrays):
        group.set_training_info(TrainingInfo(reward_shaping=({"bonus": 10.0},)))
    last, first = np.zeros((2, NUM_ENVS, 3), np.float32)
    arrays.reset(last)
    last_rows = tensors.reset()
    assert [(agent, bonus) for _, agent, bonus in of_tensors.told] == [(env, 10.0) for env in range(NUM_ENVS)]
    for trajectory in range(NUM_TRAJECTORIES):
        arrays.start_slot(last, first)
        tensors.start_trajectory(last_rows)
        for row in range(ROLLOUT):
            if (trajectory, row) == (2, 4):
                for group in (tensors, arrays):
                    group.set_training_info(TrainingInfo(reward_shaping=({"bonus": 50.0},)))
            rows = new_row(last)
            arrays.step(np.zeros((NUM_ENVS, 2), np.float32), rows)
            step = tensors.step(torch.zeros(NUM_ENVS, 2))
            last_rows = step.next_rows.clone()
            np.testing.assert_array_equal(step.reward.numpy(), rows.reward)
    assert of_tensors.told == of_arrays.told
    assert {bonus for *_, bonus in of_tensors.told} == {10.0, 50.0}
    assert {agent for _, agent, bonus in of_tensors.told if bonus == 50.0} == set(range(NUM_ENVS))


@in_each_mode
def test_environments_that_evaluate_keep_the_defaults_of_the_reward(mode: AutoresetMode) -> None:
    shaped = Shaped(AsTensors(sentinels(mode, NUM_ENVS + 2)))
    spec = read_spec(NumberedSentinel(0), "Sentinels")
    evaluation: Any = SimpleNamespace(num_envs=2, act=lambda rows: torch.zeros(2, 2), record=lambda ends, begins: None)
    group = EvaluatingGroup(shaped, 7, spec, "raw", CPU, evaluation)
    group.set_training_info(TrainingInfo(reward_shaping=({"bonus": 10.0},)))
    rows = group.reset()
    for _ in range(NUM_TRAJECTORIES):
        group.start_trajectory(rows)
        for _ in range(ROLLOUT):
            rows = group.step(torch.zeros(NUM_ENVS, 2)).next_rows.clone()
    assert len(shaped.told) > 2 * NUM_ENVS
    assert shaped.bonus.tolist() == [10.0] * NUM_ENVS + [0.0] * 2


@in_each_mode
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_flags_of_any_dtype_are_bools(dtype: torch.dtype, mode: AutoresetMode) -> None:
    class OtherFlags(VectorWrapper):
        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, infos = self.env.step(actions)
            return obs, reward, terminated.to(dtype), truncated.to(dtype), infos

    group, expected = tensor_group(OtherFlags(AsTensors(sentinels(mode)))), tensor_group(AsTensors(sentinels(mode)))
    assert torch.equal(group.reset(), expected.reset())
    for _ in range(40):
        step, wanted = group.step(torch.zeros(NUM_ENVS, 2)), expected.step(torch.zeros(NUM_ENVS, 2))
        for name in (*FIELDS, "next_rows"):
            assert torch.equal(getattr(step, name), getattr(wanted, name))
        assert torch.equal(step.ends.episode_return, wanted.ends.episode_return)


def test_an_observation_that_ends_an_episode_need_not_be_finite() -> None:
    class EndsWithNan(VectorWrapper):
        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, infos = self.env.step(actions)
            return np.where(terminated[:, None], np.nan, obs), reward, terminated, truncated, infos

    group = tensor_group(AsTensors(EndsWithNan(sentinels(AutoresetMode.NEXT_STEP))))
    group.reset()
    num_terminated = 0
    for _ in range(60):
        step = group.step(torch.zeros(NUM_ENVS, 1))
        num_terminated += int(step.terminated.sum())
        assert torch.isfinite(step.next_rows).all()
    assert num_terminated > 0


class Spoiled(VectorWrapper):
    """Changes what a step returns."""

    def __init__(self, env: VectorEnv[Any, Any, Any], spoil: Any) -> None:
        super().__init__(env)
        self._spoil = spoil

    def step(self, actions: Any) -> Any:
        return self._spoil(*self.env.step(actions))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda obs, *rest: (obs[:, :2], *rest), r"shape \(4, 2\) on cpu, not \(4, 3\) on cpu"),
        (lambda obs, *rest: (obs.numpy(), *rest), "a ndarray where a tensor was expected"),
        (lambda obs, *rest: (obs.to("meta"), *rest), "on meta, not .* env_kwargs, the learner's as --device"),
        (lambda *result: (*result[:-1], {}), "have no final_obs"),
    ],
)
def test_observations_of_another_kind_are_refused(spoil: Any, said: str) -> None:
    group = tensor_group(Spoiled(AsTensors(sentinels(AutoresetMode.SAME_STEP)), spoil))
    group.reset()
    with pytest.raises(WrongObservation, match=said):  # noqa: PT012
        for _ in range(12):
            group.step(torch.zeros(NUM_ENVS, 2))


def test_an_exception_of_the_environment_is_its_failure() -> None:
    env = AsTensors(sentinels(AutoresetMode.SAME_STEP))
    group = tensor_group(env)
    group.reset()
    env.close()
    env.step = lambda _: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(EnvironmentCallFailed) as caught:
        group.step(torch.zeros(NUM_ENVS, 2))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
