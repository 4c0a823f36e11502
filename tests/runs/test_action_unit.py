"""The bounds of actions are their unit: a task is the same task whatever numbers its bounds are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_helper
import torch
from run_helper import FinishedRun

from asyncrl.inference.policy import load_policy
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

BOUNDS = ((0.0, 100.0), (-0.01, 0.01), (-1.0, 1.0))
ACTOR_CRITIC: dict[str, Any] = {"learning_rate": 0.003}
SAC: dict[str, Any] = {"algo": "sac", "warmup_env_steps": 200, "batch_size": 16, "train_for_env_steps": 300}
TD3 = {**SAC, "algo": "td3"}


def reach(folder: Path, low: float, high: float, mode: str = "serial", **settings: Any) -> FinishedRun:
    kwargs = {"low": low, "high": high}
    return run_helper.run(folder, mode, "Reach", env_kwargs=kwargs, gamma=0.0, **settings)


@pytest.mark.parametrize(
    "settings",
    [ACTOR_CRITIC, {**ACTOR_CRITIC, "squash_actions": True}, {"backend": "hogwild", "algo": "a2c"}, SAC, TD3],
    ids=["ppo", "ppo-squashed", "a3c", "sac", "td3"],
)
def test_one_task_with_three_bounds_has_one_result(settings: dict[str, Any], tmp_path: Path) -> None:
    models = []
    for low, high in BOUNDS:
        finished = reach(tmp_path / str(high), low, high, **{"train_for_env_steps": 500, **settings})
        assert finished.outcome.checkpoint is not None
        models.append(checkpoint.load(Path(finished.outcome.checkpoint)).model)
    for other in models[1:]:
        for name, tensor in models[0].items():
            torch.testing.assert_close(tensor, other[name], rtol=0.0, atol=1e-4, msg=name)


def test_goals_are_reached_in_other_processes_whatever_the_bounds(tmp_path: Path) -> None:
    finished = reach(tmp_path, *BOUNDS[0], mode="async-central", **ACTOR_CRITIC, train_for_env_steps=12_000)
    policy = load_policy(Path(str(finished.outcome.checkpoint)))
    goals = np.array([[-0.7], [0.0], [0.7]])
    np.testing.assert_allclose(policy.act(goals, deterministic=True), 50.0 + 50.0 * goals, atol=12.0)


def test_raw_actions_are_the_environments_own_numbers(tmp_path: Path) -> None:
    finished = reach(tmp_path, *BOUNDS[0], recorded=True, action_unit="raw", train_for_env_steps=500)
    for data in finished.datasets:
        taken = np.clip(data["action"][..., 0], 0.0, 100.0)
        np.testing.assert_allclose(data["reward"], -np.abs((taken - 50.0) / 50.0 - data["obs"][:-1, :, 0]), atol=1e-5)
