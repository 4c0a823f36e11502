"""Whole runs of DQN: on environments whose right answer is known, with masks, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_helper import REPLAY_MODES, FinishedRun, assert_same_training, mean_return, run

from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.inference.policy import load_policy
from asyncrl.models.encoders import Inputs
from asyncrl.run import preflight
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

DQN: dict[str, Any] = {
    "algo": "dqn",
    "num_envs_per_worker": 2,
    "batch_size": 32,
    "encoder_mlp_layers": [32],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 10.0,
    "replay_size": 3000,
    "warmup_env_steps": 200,
    "updates_per_env_step": 1.0,
    "train_for_env_steps": 1500,
    "learning_rate": 0.005,
    "lr_schedule": "constant",
    "tau": 0.05,
    "gamma": 0.8,
}


def values(finished: FinishedRun, *observations: list[float]) -> np.ndarray:
    """The values of observations, as means over the choices, which mean nothing."""
    policy = load_policy(Path(finished.outcome.checkpoint))
    model: Any = policy._model
    with torch.no_grad():
        return model.values(Inputs(torch.tensor(observations))).mean(1).numpy()


@pytest.mark.parametrize("mode", REPLAY_MODES)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_goes_on_in_its_values(mode: str, n_step: int, tmp_path: Path) -> None:
    settings = {**DQN, "n_step": n_step, "env_kwargs": {"terminates": False}}
    finished = run(tmp_path, mode, "EndlessReward", **settings)
    assert values(finished, [0.0, 0.0], [1.0, 0.0]) == pytest.approx([5.0, -5.0 + 0.8 * 5.0], abs=0.35)


def test_a_terminated_episode_ends_in_its_values(tmp_path: Path) -> None:
    finished = run(tmp_path, "async-local", "EndlessReward", **DQN, env_kwargs={"terminates": True})
    assert values(finished, [0.0, 3.0], [0.0, 1.0]) == pytest.approx([1.0, 1.0 + 0.8 + 0.64], abs=0.2)


def test_values_are_the_same_with_priorities(tmp_path: Path) -> None:
    settings = {**DQN, "prioritized_replay": True, "env_kwargs": {"terminates": True}}
    finished = run(tmp_path, "async-central", "EndlessReward", **settings)
    assert values(finished, [0.0, 3.0], [0.0, 1.0]) == pytest.approx([1.0, 1.0 + 0.8 + 0.64], abs=0.2)
    assert checkpoint.load(Path(finished.outcome.checkpoint)).state["max_priority"] > 1.0


@pytest.mark.parametrize("dueling", [False, True])
def test_a_contextual_bandit_is_solved_and_the_policy_can_be_taken_away(dueling: bool, tmp_path: Path) -> None:
    finished = run(tmp_path, "async-local", "ContextualBandit", **DQN, dueling=dueling)
    policy = load_policy(Path(finished.outcome.checkpoint))
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]
    drawn = np.stack([policy.act(np.eye(2)) for _ in range(400)])
    wrong = (drawn != [0, 1]).mean()
    assert 0.0 < wrong < 0.06, "half of the choices at random, 5 %, are wrong ones"


@pytest.mark.parametrize("mode", ["serial", "async-central"])
def test_only_allowed_choices_are_taken(mode: str, tmp_path: Path) -> None:
    # The environment raises at an action that its mask forbids, in the warm-up as well.
    finished = run(tmp_path, mode, "space_envs:MaskedChoice-v0", **DQN)
    assert mean_return(finished) == pytest.approx(1.0)


@pytest.mark.parametrize("prioritized", [False, True])
def test_a_serial_run_that_is_resumed_with_its_replay_equals_one_that_never_stopped(
    prioritized: bool, tmp_path: Path
) -> None:
    settings = {**DQN, "async_rl": False, "checkpoint_resets": True, "save_replay": True, "normalize_input": True}
    settings |= {"save_every_env_steps": 500, "keep_checkpoints": 100, "lr_schedule": "linear_decay"}
    settings |= {"prioritized_replay": prioritized, "n_step": 2}
    whole = run(tmp_path / "whole", "serial", "CartPole-v1", **settings)
    found = checkpoint.newest_first(tmp_path / "whole" / "checkpoints")
    assert len(found) == 3
    for path in found[1:]:
        resumed = run(tmp_path / path.name, "serial", "CartPole-v1", resume_from=path, **settings)
        first, second = (checkpoint.load(Path(f.outcome.checkpoint), with_replay=True) for f in (whole, resumed))
        assert_same_training(first, second)
        assert ("priority.0" in first.replay.columns) == prioritized
        for name, parts in first.replay.columns.items():
            np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(second.replay.columns[name]), name)


def test_what_it_cannot_train_is_one_sentence() -> None:
    found = preflight.run(load(["--env=Pendulum-v1", "--algo=dqn"], lenient=True), Machine(cores=2))
    (problem,) = found.problems
    assert str(problem).startswith("--algo=dqn needs actions that are one choice (Discrete); Pendulum-v1 has ")
    assert "--algo=sac" in str(problem)
    for flags in (["--backend=hogwild"], ["--use_rnn=True"], ["--num_policies=2"]):
        loaded = load(["--env=CartPole-v1", "--algo=dqn", *flags], lenient=True)
        assert preflight.run(loaded, Machine(cores=2)).problems, flags
