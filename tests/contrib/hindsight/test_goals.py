"""Whole runs in environments with goals, whose reward says nothing until a goal is reached (HER)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import whole_and_resumed
from run_helper import mean_return, run

from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

GOALS: dict[str, Any] = {
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "batch_size": 64,
    "encoder_mlp_layers": [64, 64],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 0.0,
    "precision": "float32",
    "replay_size": 20_000,
    "warmup_env_steps": 500,
    "train_for_env_steps": 4000,
    "learning_rate": 0.001,
    "lr_schedule": "constant",
    "tau": 0.02,
    "gamma": 0.95,
    "her_goals": 4,
}
BITS = {**GOALS, "algo": "dqn", "updates_per_env_step": 0.25, "exploration_final_eps": 0.1, "exploration_fraction": 0.5}
SAC = {**GOALS, "algo": "sac", "updates_per_env_step": 0.5, "train_for_env_steps": 3000}
BIT_FLIP, REACH = "contrib.hindsight.goal_envs:BitFlip-v0", "contrib.hindsight.goal_envs:PointReach-v0"


@pytest.mark.parametrize(
    ("env", "settings", "learned", "failed"),
    [
        # The best policy needs four flips on average: three rewards of -1.
        (BIT_FLIP, BITS, -4.5, -7.5),
        (REACH, SAC, -10.0, None),  # below -12 without other goals
    ],
    ids=["dqn", "sac"],
)
def test_a_sparse_task_is_learned_with_other_goals_and_not_without(
    env: str, settings: dict[str, Any], learned: float, failed: float | None, tmp_path: Path
) -> None:
    assert mean_return(run(tmp_path / "with", "serial", env, **settings)) > learned
    if failed is not None:
        assert mean_return(run(tmp_path / "without", "serial", env, **{**settings, "her_goals": 0})) < failed


def test_goals_are_neither_steps_nor_updates_and_are_saved_with_the_replay(tmp_path: Path) -> None:
    settings = {**BITS, "train_for_env_steps": 1000, "save_replay": True, "replay_ratio_tolerance": 0.0}
    finished = run(tmp_path, "async-local", BIT_FLIP, **settings)
    content = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True)
    assert 1000 <= content.state["env_steps"] < 1004
    assert content.state["policy_version"] == int(0.25 * (content.state["env_steps"] - 500))
    assert content.replay is not None
    valid, reward = (content.replay.columns[f"{name}.0"][0] for name in ("valid", "goal_reward"))
    has_goals = np.isfinite(reward).all(-1)
    assert np.isfinite(reward[valid]).mean() > 0.9, "only the last episodes have not ended"
    assert not has_goals[~valid].any()
    assert valid.sum() == content.state["env_steps"]


def test_a_serial_run_that_is_resumed_equals_one_that_never_stopped(tmp_path: Path) -> None:
    settings = {**BITS, "save_replay": True, "save_every_env_steps": 600, "train_for_env_steps": 1200}
    first, second = whole_and_resumed(tmp_path, BIT_FLIP, **settings)
    assert first.replay is not None and second.replay is not None
    for name, parts in first.replay.columns.items():
        np.testing.assert_array_equal(parts[0], second.replay.columns[name][0], name)
