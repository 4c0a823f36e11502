"""Whole runs of TD3: on environments whose right answer is known, resumed, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helper import REPLAY_MODES, FinishedRun, assert_same_training, run

from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.envs.actions import ActionAdapter
from asyncrl.inference.policy import load_policy
from asyncrl.learner.state import LearnerState
from asyncrl.learner.td3 import Td3Learner
from asyncrl.models.encoders import Inputs
from asyncrl.models.td3 import DeterministicActor
from asyncrl.run import preflight
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

TD3: dict[str, Any] = {
    "algo": "td3",
    "num_envs_per_worker": 2,
    "batch_size": 32,
    "policy_delay": 2,
    "encoder_mlp_layers": [32],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 0.0,
    "precision": "float32",
    "replay_size": 3000,
    "warmup_env_steps": 200,
    "train_for_env_steps": 1500,
    "learning_rate": 0.005,
    "lr_schedule": "constant",
    "tau": 0.05,
    "gamma": 0.8,
}


def values(finished: FinishedRun, *observations: list[float]) -> np.ndarray:
    """What the critics, on average, say of observations, whose actions mean nothing."""
    content = checkpoint.load(Path(finished.outcome.checkpoint))
    config, spec = finished.config, finished.spec
    learner = Td3Learner(DeterministicActor(spec, config), config, spec, torch.device("cpu"))
    learner.load_state_dict(LearnerState(dict(content.model), dict(content.optimizer), dict(content.state)))
    with torch.no_grad():
        obs = torch.tensor(observations)
        return learner.critic.values(Inputs(obs), torch.zeros(len(obs), 1)).mean((0, 2)).numpy()


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_goes_on_in_its_values(n_step: int, tmp_path: Path) -> None:
    kwargs = {"terminates": False, "is_continuous": True}
    finished = run(tmp_path, "async-local", "EndlessReward", **TD3, n_step=n_step, env_kwargs=kwargs)
    assert values(finished, [0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -5.0 + 0.8 * 5.0], abs=0.4)


def test_a_terminated_episode_ends_in_its_values(tmp_path: Path) -> None:
    kwargs = {"terminates": True, "is_continuous": True}
    finished = run(tmp_path, "async-local", "EndlessReward", **TD3, env_kwargs=kwargs)
    assert values(finished, [0.0, 3.0], [0.0, 1.0]) == pytest.approx([1.0, 1.0 + 0.8 + 0.64], abs=0.3)


@pytest.mark.parametrize("mode", REPLAY_MODES)
def test_a_distant_action_is_found_and_the_policy_can_be_taken_away(mode: str, tmp_path: Path) -> None:
    settings = {**TD3, "train_for_env_steps": 2500, "reward_scale": 0.1, "save_replay": True}
    finished = run(tmp_path, mode, "DistantTarget", **settings, exploration_stddev=0.05)
    saved = Path(finished.outcome.checkpoint)
    policy = load_policy(saved)
    assert policy.act([0.0]) == policy.act([0.0], deterministic=True) == pytest.approx([5.0], abs=0.3)
    # What was collected last is the policy with its noise, in units of a half range of 4.
    replay = checkpoint.load(saved, with_replay=True).replay
    # A worker that starts late may have made warm-up steps only.
    actions = max((np.concatenate(replay.columns[f"action.{split}"]) for split in range(2)), key=len)
    last = actions[-100:].flatten()
    taken = ActionAdapter(finished.spec, mapping="squashed").to_env_batch(last[:, np.newaxis])[:, 0]
    assert taken.mean() == pytest.approx(5.0, abs=0.4)
    assert 0.6 * 0.05 * 4.0 < taken.std() < 2.5 * 0.05 * 4.0


@pytest.mark.parametrize("noise", ["white", "pink"])
def test_a_serial_run_that_is_resumed_with_its_replay_equals_one_that_never_stopped(noise: str, tmp_path: Path) -> None:
    settings = {**TD3, "async_rl": False, "checkpoint_resets": True, "save_replay": True, "normalize_input": True}
    settings |= {"save_every_env_steps": 500, "keep_checkpoints": 100, "lr_schedule": "linear_decay"}
    settings |= {"exploration_noise": noise, "train_for_env_steps": 1000}
    whole = run(tmp_path / "whole", "serial", "Pendulum-v1", **settings)
    found = checkpoint.newest_first(tmp_path / "whole" / "checkpoints")
    assert len(found) == 2
    resumed = run(tmp_path / "resumed", "serial", "Pendulum-v1", resume_from=found[1], **settings)
    first, second = (checkpoint.load(Path(f.outcome.checkpoint), with_replay=True) for f in (whole, resumed))
    assert_same_training(first, second)


def test_what_it_cannot_train_is_one_sentence() -> None:
    for env in ("CartPole-v1", "space_envs:SeeAndTell-v0"):
        found = preflight.run(load([f"--env={env}", "--algo=td3"], lenient=True), Machine(cores=2))
        (problem,) = found.problems
        assert str(problem).startswith("--algo=td3 needs continuous actions only (Box); ")
        assert "--algo=sac" in str(problem)
    for flags in (
        ["--backend=hogwild"],
        ["--num_policies=2"],
        ["--env_backend=tensor"],
    ):
        loaded = load(["--env=Pendulum-v1", "--algo=td3", *flags], lenient=True)
        assert preflight.run(loaded, Machine(cores=2)).problems, flags
