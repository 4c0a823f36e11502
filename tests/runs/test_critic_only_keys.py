"""A policy that sees less than its critic learns, and does not where the critic sees no more than the policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_helper import FinishedRun, run

from asyncrl.inference.policy import load_policy

TENSORS: dict[str, Any] = {"env_backend": "tensor", "num_workers": 1, "num_envs_per_worker": 16}
WAYS = {
    "async": ("async-local", "HiddenOffset", {}),
    "tensors": ("serial", "tensor_envs:make_hidden_offset", TENSORS),
}


def chances(finished: FinishedRun) -> list[float]:
    """The probabilities of the right arm, with each hidden sign if it is observed."""
    parameters = []
    for hidden in [[-1.0], [1.0]] if finished.spec.observation_size == 5 else [[]]:
        logits = finished.action_parameters(*([*hidden, *np.eye(4)[shown].tolist()] for shown in range(4)))
        parameters.append(np.exp(logits - np.log(np.exp(logits).sum(1, keepdims=True))))
    assert all((each == parameters[0]).all() for each in parameters), "the actor sees the hidden sign"
    return np.diag(parameters[0]).tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("leaves_nothing")
def test_the_critics_own_part_makes_the_policy_learn(way: str, tmp_path: Path) -> None:
    mode, env, settings = WAYS[way]
    finished = run(tmp_path, mode, env, **settings, critic_only_keys=["offset"], train_for_env_steps=8000)
    assert min(chances(finished)) > 0.9
    policy = load_policy(finished.outcome.checkpoint or "")
    assert [policy.act({"shown": np.int64(arm)}, deterministic=True) for arm in range(4)] == [0, 1, 2, 3]


def test_without_that_part_it_does_not_learn(tmp_path: Path) -> None:
    kwargs = {"shows_offset": False}
    finished = run(tmp_path, "serial", "HiddenOffset", env_kwargs=kwargs, train_for_env_steps=8000)
    assert np.mean(chances(finished)) < 0.6


def test_sac_trains_an_actor_that_sees_less(tmp_path: Path) -> None:
    settings = {"algo": "sac", "critic_only_keys": ["offset"], "warmup_env_steps": 200, "batch_size": 64}
    finished = run(tmp_path, "serial", "HiddenOffset", **settings, env_kwargs={"scale": 1.0}, train_for_env_steps=1000)
    policy = load_policy(finished.outcome.checkpoint or "")
    assert [policy.act({"shown": np.int64(arm)}, deterministic=True) for arm in range(4)] == [0, 1, 2, 3]
