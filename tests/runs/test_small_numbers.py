"""Runs on environments whose numbers are very small, or too large for float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl import RunResult, TrainConfig, Trainer
from asyncrl.envs.probe import probe

COMMON: dict[str, Any] = {
    "env": "probe_envs:SignOf-v0",
    "serial_mode": True,
    "device": "cpu",
    "gamma": 0.5,
    "encoder_mlp_layers": [32],
    "learning_rate": 0.003,
    "batch_size": 64,
    "with_tensorboard": False,
}
PPO: dict[str, Any] = {
    **COMMON,
    "num_workers": 1,
    "num_envs_per_worker": 8,
    "worker_num_splits": 1,
    "rollout": 16,
    "num_batches_per_epoch": 2,
    "num_epochs": 4,
    "train_for_env_steps": 4096,
}
A2C: dict[str, Any] = {**PPO, "algo": "a2c", "rollout": 8, "num_batches_per_epoch": 1, "num_epochs": 1}
REPLAY: dict[str, Any] = {**COMMON, "warmup_env_steps": 300, "train_for_env_steps": 1500}

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def train(folder: Path, settings: dict[str, Any], **env_kwargs: Any) -> RunResult:
    return Trainer(TrainConfig(**{**settings, "env_kwargs": env_kwargs, "train_dir": folder})).run()


def takes_right_actions(result: RunResult, size: float, offset: float = 0.0) -> bool:
    obs = np.array([[offset - size, 5.0], [offset + size, 5.0]])
    actions = np.asarray(result.policy().act(obs, deterministic=True)).reshape(2, -1)[:, 0]
    return bool(actions[0] <= 0.0 < actions[1])


@pytest.mark.parametrize(
    ("settings", "size", "offset"),
    [
        pytest.param(PPO, 1e-6, 0.0, id="ppo"),
        pytest.param(PPO, 1e-5, 0.5, id="ppo-beside-an-offset"),
        pytest.param(A2C, 1e-9, 0.0, id="a2c"),
    ],
)
def test_a_small_feature_is_learned_from(settings: dict[str, Any], size: float, offset: float, tmp_path: Path) -> None:
    result = train(tmp_path, settings, size=size, offset=offset)
    assert result.summary.ep_rew_mean > 8.5  # of 10; chance is 5
    assert takes_right_actions(result, size, offset)


@pytest.mark.parametrize(("algo", "reward"), [("sac", 1e-6), ("td3", 1e-9)])
def test_small_rewards_are_learned_from_if_they_are_normalized(algo: str, reward: float, tmp_path: Path) -> None:
    settings = {**REPLAY, "algo": algo, "normalize_rewards": True}
    result = train(tmp_path, settings, reward=reward, is_discrete=False)
    assert takes_right_actions(result, 1.0)
    assert result.summary.ep_rew_mean > 7.0 * reward


@pytest.mark.parametrize(("algo", "reward", "warns"), [("sac", 1e-6, True), ("dqn", 1e-9, True), ("sac", 0.5, False)])
def test_small_rewards_from_a_replay_are_warned_of(
    algo: str, reward: float, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, {**REPLAY, "algo": algo, "train_for_env_steps": 400}, reward=reward)
    remedy = f"--normalize_rewards=True, or --reward_scale={1.0 / reward:g}"
    assert [remedy in text for text in caplog.messages if "--reward_scale=" in text] == [True] * warns


@pytest.mark.parametrize(
    ("size", "offset", "dtype", "warns"),
    [
        (0.05, 1.7e9, "f8", True),  # seconds since 1970
        (0.001, 5.5e6, "f8", True),  # metres on a map
        (1.0, 2.0**31, "i8", True),
        (1.0, 1000.0, "i8", False),
        (1e-6, 0.0, "f8", False),
        (1e-14, 1.0, "f8", False),  # rounding of float64
        (0.0, 1.7e9, "f8", False),
    ],
)
def test_numbers_that_float32_cannot_hold_are_warned_of_once(
    size: float, offset: float, dtype: str, warns: bool
) -> None:
    said: list[str] = []
    probe("probe_envs:SignOf-v0", {"size": size, "offset": offset, "dtype": dtype}, advise=said.append)
    assert [text for text in said if "observation[0]" in text and "float32" in text] == said
    assert len(said) == warns
