"""Whole runs on environments whose right answer is known. `test_rows` checks each row of all ways to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helper import run

from asyncrl.envs.actions import ActionAdapter

pytestmark = pytest.mark.usefixtures("leaves_nothing")

# With normalized returns a constant is known from the statistics alone, and the critic would have nothing to learn.
CRITIC: dict[str, Any] = {"normalize_returns": False, "value_loss_coeff": 1.0}
LONGER: dict[str, Any] = {"gamma": 0.8, "train_for_env_steps": 8000}


@pytest.mark.parametrize(
    ("env", "observations", "values"),
    [("RewardIsObservation", ([-1.0], [1.0]), [-1.0, 1.0]), ("DelayedReward", ([0.0], [1.0]), [0.5, 1.0])],
)
def test_a_reward_belongs_to_its_observation_and_is_discounted(
    env: str, observations: tuple[list[float], ...], values: list[float], tmp_path: Path
) -> None:
    trained = run(tmp_path, "serial", env, gamma=0.5, **CRITIC)
    assert trained.values(*observations) == pytest.approx(values, abs=0.05)


@pytest.mark.parametrize(("mode", "num_actions", "start"), [("serial", 3, 5), ("async-central", 2, 0)])
def test_a_contextual_bandit_is_solved(mode: str, num_actions: int, start: int, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "ContextualBandit", env_kwargs={"num_actions": num_actions, "start": start})
    contexts = np.eye(num_actions).tolist()
    probabilities = np.exp(trained.action_parameters(*contexts))
    assert probabilities.diagonal().min() > 0.95


@pytest.mark.parametrize(
    ("mode", "terminates"),
    [("serial", False), ("serial", True), ("async-local", False), ("sync-central", True)],
)
def test_values_end_with_a_terminated_episode_and_go_on_after_a_truncated_one(
    mode: str, terminates: bool, tmp_path: Path
) -> None:
    trained = run(tmp_path, mode, "EndlessReward", env_kwargs={"terminates": terminates}, **LONGER)
    if terminates:
        observations, expected = ([0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [1.0, 0.0]), [1.0, 1.8, 2.44, -5.0 + 0.8 * 2.44]
    else:
        observations, expected = ([0.0, 0.0], [1.0, 0.0]), [5.0, -1.0]
    assert trained.values(*observations) == pytest.approx(expected, abs=0.25)


@pytest.mark.parametrize(("mode", "squash"), [("serial", False), ("serial", True), ("async-local", True)])
def test_a_distant_action_is_found(mode: str, squash: bool, tmp_path: Path) -> None:
    trained = run(tmp_path, mode, "DistantTarget", squash_actions=squash, initial_stddev=0.5)
    parameters = trained.action_parameters([0.0])
    mean_action = ActionAdapter(trained.spec, trained.config.action_mapping).to_env_batch(parameters[:, :1])
    assert mean_action == pytest.approx(np.array([[5.0]]), abs=0.3)
