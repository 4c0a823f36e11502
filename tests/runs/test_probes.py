"""Whole runs on environments whose right answer is known, in each way to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from run_helper import MODES, run

from asyncrl.envs.actions import ActionAdapter

pytestmark = pytest.mark.usefixtures("leaves_nothing")

in_each_mode = pytest.mark.parametrize("mode", MODES)

# With normalized returns a constant is known from the statistics alone, and the critic would have nothing to learn.
CRITIC: dict[str, Any] = {"normalize_returns": False, "value_loss_coeff": 1.0}
LONGER: dict[str, Any] = {"gamma": 0.8, "train_for_env_steps": 8000}


@in_each_mode
def test_a_constant_reward_is_valued_once(mode: str, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "ConstantReward", **CRITIC)
    assert trained.values([0.0]) == pytest.approx([1.0], abs=0.05)


def test_it_runs_on_a_system_without_the_calls_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Children get descriptors, so it is the runner's system that decides. macOS has none of these.
    for name in ("memfd_create", "eventfd", "posix_fallocate", "pidfd_open", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    trained = run(tmp_path, "async-central", "ConstantReward", **CRITIC)
    assert trained.values([0.0]) == pytest.approx([1.0], abs=0.05)


@in_each_mode
def test_the_reward_belongs_to_its_own_observation(mode: str, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "RewardIsObservation", **CRITIC)
    assert trained.values([-1.0], [1.0]) == pytest.approx([-1.0, 1.0], abs=0.05)


@in_each_mode
def test_a_delayed_reward_is_discounted(mode: str, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "DelayedReward", gamma=0.5, **CRITIC)
    assert trained.values([0.0], [1.0]) == pytest.approx([0.5, 1.0], abs=0.05)


@in_each_mode
@pytest.mark.parametrize(("num_actions", "start"), [(2, 0), (3, 5)])
def test_a_contextual_bandit_is_solved(mode: str, num_actions: int, start: int, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "ContextualBandit", env_kwargs={"num_actions": num_actions, "start": start})
    contexts = np.eye(num_actions).tolist()
    probabilities = np.exp(trained.action_parameters(*contexts))
    assert probabilities.diagonal().min() > 0.95


@in_each_mode
def test_a_truncated_episode_goes_on_in_its_value(mode: str, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "EndlessReward", env_kwargs={"terminates": False}, **LONGER)
    forever = 1.0 / (1.0 - 0.8)
    assert trained.values([0.0, 0.0], [1.0, 0.0]) == pytest.approx([forever, -5.0 + 0.8 * forever], abs=0.25)


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("autoreset_mode", [mode.value for mode in AutoresetMode])
def test_a_vectorized_environment_gives_the_same_values(autoreset_mode: str, terminates: bool, tmp_path: Path) -> None:
    kwargs = {"autoreset_mode": autoreset_mode, "terminates": terminates}
    vectorized: dict[str, Any] = {"env_backend": "gym_vector", "env_kwargs": kwargs}
    trained = run(tmp_path, "serial", "VectorEndlessReward", **vectorized, **LONGER)
    assert trained.spec.is_vectorized
    if terminates:
        observations, expected = ([0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0]), [1.0, 1.8, 2.44, -5.0 + 0.8 * 2.44]
    else:
        observations, expected = ([0.0, 0.0], [1.0, 0.0]), [5.0, -1.0]
    assert trained.values(*observations) == pytest.approx(expected, abs=0.25)


@in_each_mode
def test_a_terminated_episode_ends_in_its_value(mode: str, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "EndlessReward", env_kwargs={"terminates": True}, **LONGER)
    sums = [1.0, 1.8, 2.44]
    values = trained.values([0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0])
    assert values == pytest.approx([*sums, -5.0 + 0.8 * sums[-1]], abs=0.25)


@in_each_mode
@pytest.mark.parametrize("squash", [False, True])
def test_a_distant_action_is_found(mode: str, squash: bool, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "DistantTarget", squash_actions=squash, initial_stddev=0.5)
    parameters = trained.action_parameters([0.0])
    mean_action = ActionAdapter(trained.spec, trained.config.action_mapping).to_env_batch(parameters[:, :1])
    assert mean_action == pytest.approx(np.array([[5.0]]), abs=0.3)
