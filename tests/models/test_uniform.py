"""The warm-up's actions cover the whole range of the environment's actions evenly."""

from __future__ import annotations

import numpy as np
from small_runs import BOX, CHOICE

from asyncrl.envs.actions import ActionAdapter
from asyncrl.models.distributions import make_distribution
from asyncrl.models.uniform import UniformPolicy

OBS = np.zeros((20_000, 2), np.float32)


def test_squashed_actions_are_uniform_between_the_bounds_of_the_environment() -> None:
    policy = UniformPolicy(make_distribution(BOX.action, squash=True), seed=1)
    action = policy.act(OBS).action
    assert action.dtype == np.float32
    assert np.isfinite(action).all()
    taken = ActionAdapter(BOX, mapping="squashed").to_env_batch(action)[:, 0]
    counts, _ = np.histogram(taken, bins=10, range=(-0.5, 0.5))
    assert counts.sum() == len(OBS)
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000 * 0.9)
    assert not np.array_equal(policy.act(OBS).action, action)


def test_choices_are_uniform() -> None:
    counts = np.bincount(UniformPolicy(make_distribution(CHOICE.action, squash=False), seed=1).act(OBS).action)
    assert len(counts) == 3
    assert np.abs(counts - len(OBS) / 3).max() < 5 * np.sqrt(len(OBS) * 2 / 9)
