"""Whole runs with state-dependent exploration: what was acted, and what the learner made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resuming import assert_same_training, whole_and_resumed
from run_helper import FinishedRun, mean_return, run
from sac_runs import SAC

from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

STILL: dict[str, Any] = {
    "use_sde": True,
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "worker_num_splits": 1,
    "batch_size": 32,
    "num_batches_per_epoch": 1,
    "num_epochs": 1,
    "train_for_env_steps": 500,
    "learning_rate": 0.0,
    "lr_schedule": "constant",
    "stagger_episodes": False,
}
"""A dataset is one slot, whose columns are the environments in their order, weights never change, and no episode is
shortened."""


def episodes_of(actions: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> list[list[int]]:
    """For each complete episode of an environment, the numbers of its steps' actions; equal actions have one number."""
    episodes: list[list[int]] = [[]]
    known: list[np.ndarray] = []
    for action, has_ended, is_step in zip(actions, ended, valid, strict=True):
        if not is_step:
            continue
        number = next((idx for idx, value in enumerate(known) if np.abs(value - action).max() < 1e-5), len(known))
        if number == len(known):
            known.append(action)
        episodes[-1].append(number)
        if has_ended:
            episodes.append([])
    return episodes[:-1]


def check_is_held(episodes: list[list[int]], num_steps: int) -> None:
    assert len(episodes) >= 10
    expected = [step // num_steps if num_steps > 0 else 0 for step in range(5)]
    numbers = [number - episode[0] for episode in episodes for number in episode]
    assert numbers == expected * len(episodes)
    firsts = [episode[0] for episode in episodes]
    assert len(set(firsts)) == len(firsts), "each episode begins with noise of its own"


@pytest.mark.parametrize(("mode", "num_steps"), [("serial", 2), ("sync-central", -1), ("hogwild", 2)])
def test_slots_hold_noise_for_its_steps_and_over_their_ends(mode: str, num_steps: int, tmp_path: Path) -> None:
    own = {"backend": "hogwild", "hogwild_mode": "synced"} if mode == "hogwild" else {}
    asked = "async-local" if mode == "hogwild" else mode
    finished = run(tmp_path, asked, "Still", recorded=True, sde_sample_freq=num_steps, **STILL, **own)
    fields = {
        name: np.concatenate([each[name] for each in finished.datasets])
        for name in ("action", "terminated", "truncated", "valid")
    }
    first = None
    for env in range(4):
        ended = fields["terminated"][:, env] | fields["truncated"][:, env]
        episodes = episodes_of(fields["action"][:, env], ended, fields["valid"][:, env])
        check_is_held(episodes, num_steps)
        first = fields["action"][0, env] if first is None else first
        assert env == 0 or (fields["action"][0, env] != first).all()


def test_a_replay_holds_noise_for_its_steps(tmp_path: Path) -> None:
    settings = {**SAC, **STILL, "save_replay": True, "sde_sample_freq": 2, "warmup_env_steps": 100}
    finished = run(tmp_path, "serial", "Still", **settings)
    columns = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True).replay.columns
    fields = {
        name: np.concatenate(columns[f"{name}.0"])[30:] for name in ("action", "terminated", "truncated", "valid")
    }
    for env in range(4):
        ended = fields["terminated"][:, env] | fields["truncated"][:, env]
        first = int(np.flatnonzero(ended)[0]) + 1
        check_is_held(episodes_of(fields["action"][first:, env], ended[first:], fields["valid"][first:, env]), 2)


@pytest.mark.parametrize("settings", [{}, {"use_rnn": True, "rnn_size": 8}, {"squash_actions": True}], ids=str)
def test_the_ratio_is_one_without_lag(settings: dict[str, Any], tmp_path: Path) -> None:
    small = {"num_envs_per_worker": 4, "batch_size": 32, "num_epochs": 1, "train_for_env_steps": 1500}
    finished = run(tmp_path, "serial", "Pendulum-v1", use_sde=True, sde_sample_freq=4, **small, **settings)
    found = [each.train.max_ratio_deviation_first_batch for each in finished.learner_reports if each.train is not None]
    assert len(found) > 20 and max(found) < 1e-3


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_the_right_action_is_found(algo: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {**SAC, "train_for_env_steps": 800} if algo == "sac" else {"train_for_env_steps": 8000}
    finished: FinishedRun = run(tmp_path, "serial", "Reach", use_sde=True, env_kwargs={"low": -1.0, "high": 3.0}, **own)
    assert mean_return(finished) > -0.2


def test_a_serial_run_that_is_resumed_equals_one_that_never_stopped(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 3}
    runs = whole_and_resumed(tmp_path, "Pendulum-v1", save_every_env_steps=512, train_for_env_steps=1024, **settings)
    assert_same_training(*runs)
