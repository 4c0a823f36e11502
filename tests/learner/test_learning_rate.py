"""Learning rates that follow the divergence of the policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncrl.config.schema import TrainConfig
from asyncrl.learner.optimizer import LearningRate


def adaptive_rate(schedule: str, **settings: float) -> LearningRate:
    """A rate of 0.001 that aims at a divergence of 0.01."""
    aim: dict[str, Any] = {"lr_schedule": schedule, "lr_schedule_kl_threshold": 0.01}
    return LearningRate(TrainConfig(learning_rate=1e-3, **aim, **settings))


@pytest.mark.parametrize(("divergence", "factor"), [(0.021, 1 / 1.5), (0.019, 1.0), (0.006, 1.0), (0.004, 1.5)])
def test_a_divergence_from_half_of_the_threshold_to_twice_of_it_leaves_the_rate(
    divergence: float, factor: float
) -> None:
    of_minibatches, of_epochs = adaptive_rate("kl_adaptive_minibatch"), adaptive_rate("kl_adaptive_epoch")
    of_minibatches.after_minibatch(torch.tensor(divergence))
    of_epochs.after_epoch([torch.tensor(divergence)])
    assert [of_minibatches.value, of_epochs.value] == pytest.approx([1e-3 * factor] * 2)


@pytest.mark.parametrize(
    ("divergences", "factor"),
    [([0.0, 0.03], 1.0), ([0.03, 0.0], 1.0), ([0.015, 0.035], 1 / 1.5), ([0.008, 0.0], 1.5)],
)
def test_an_epoch_counts_with_the_mean_of_its_divergences(divergences: list[float], factor: float) -> None:
    rate = adaptive_rate("kl_adaptive_epoch")
    rate.after_epoch([torch.tensor(divergence) for divergence in divergences])
    assert rate.value == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(("divergence", "expected"), [(0.0, 2e-3), (2.0, 8e-4)])
def test_adaptive_rates_stay_within_their_range(divergence: float, expected: float) -> None:
    rate = adaptive_rate("kl_adaptive_minibatch", lr_adaptive_min=8e-4, lr_adaptive_max=2e-3)
    for _ in range(3):
        rate.after_minibatch(torch.tensor(divergence))
    assert rate.value == pytest.approx(expected)
