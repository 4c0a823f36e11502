"""Critics that predict distributions over returns: losses against loops over bins, and what follows from a range."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import vector_observation
from replay_learners import make
from small_runs import replay_loop
from torch import Tensor
from transitions import BOX, draw

from asyncrl.algorithms import sac
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics import distributional
from asyncrl.contrib.critics.distributional import DistributionalCritic
from asyncrl.envs.spec import EnvSpec, MultiDiscreteAction
from asyncrl.learner.sac import SacLearner
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor, TwinCritic

ALPHA = torch.tensor(0.3, dtype=torch.float64)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_a_distribution_is_projected_as_a_loop_over_its_bins_does() -> None:
    support, returns = torch.linspace(-2.0, 2.0, 5).double(), 1.5 * randn(7, 5)
    returns[0] = torch.tensor([-2.0, -9.0, 2.0, 9.0, 1.0])  # on a bin, and beyond the last ones
    probabilities = randn(7, 5).softmax(-1)
    expected = torch.zeros(7, 5, dtype=torch.float64)
    for row in range(7):
        for probability, value in zip(probabilities[row], returns[row].clamp(-2.0, 2.0), strict=True):
            for idx, center in enumerate(support):
                expected[row, idx] += probability * max(0.0, 1.0 - float((value - center).abs()))
    projected = distributional.project_distribution(probabilities, returns, support)
    torch.testing.assert_close(projected, expected)
    inside = (probabilities * returns.clamp(-2.0, 2.0)).sum(-1)
    torch.testing.assert_close(projected @ support, inside)  # the mean stays
    returns[3, 2] = math.nan
    assert (
        projected.shape == (7, 5)
        and distributional.project_distribution(probabilities, returns, support)[3].isnan().any()
    )


def test_targets_have_the_distribution_with_the_smaller_mean_of_each_choice() -> None:
    support, bin_log_probs, log_probs = torch.linspace(-1.0, 1.0, 3).double(), randn(2, 6, 4, 3), randn(6, 4)
    bin_log_probs, log_probs = bin_log_probs.log_softmax(-1), log_probs.log_softmax(-1)
    expected = torch.zeros(6, 3, dtype=torch.float64)
    for row in range(6):
        for choice in range(4):
            both = bin_log_probs[:, row, choice].exp()
            expected[row] += log_probs[row, choice].exp() * min(both, key=lambda each: float(each @ support))
    distribution = distributional.next_distribution(bin_log_probs, support, log_probs)
    torch.testing.assert_close(distribution, expected)
    # Without entropy its mean is the soft value.
    value = sac.soft_value(bin_log_probs.exp() @ support, log_probs, randn(6), 0.0 * ALPHA)
    torch.testing.assert_close(distribution @ support, value)


def test_the_cross_entropy_pulls_predictions_to_the_target() -> None:
    logits, target = randn(2, 6, 3).requires_grad_(), randn(6, 3).softmax(-1)
    loss = distributional.distribution_loss(logits.log_softmax(-1), target)
    expected = sum(-(target[b] * logits[k, b].log_softmax(-1)).sum() / 6 for k in range(2) for b in range(6))
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    torch.testing.assert_close(logits.grad, (logits.detach().softmax(-1) - target) / 6)


def test_the_value_of_a_distribution_is_taken_with_exact_returns() -> None:
    """A distribution that is sure of one bin, whose return bfloat16 cannot hold."""
    critics = DistributionalCritic(BOX, TrainConfig(algo="sac", value_bins=501, value_limit=5.0))
    head = critics.mlp.layers()[-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[:, 7] += 100.0
    with torch.autocast("cpu", torch.bfloat16):
        values = critics.values(Inputs(torch.rand(5, 3)), torch.rand(5, 2))
    torch.testing.assert_close(values, critics.support[7].expand(values.shape), rtol=1e-6, atol=0.0)


def test_bins_are_refused_where_values_are_sums() -> None:
    spec = EnvSpec("Many", vector_observation(3), MultiDiscreteAction((12, 12, 12), (0, 0, 0), (3,), "int64"), None)
    with pytest.raises(UsageError, match="--value_bins=101 needs actions with at most 128 combinations"):
        DistributionalCritic(spec, TrainConfig(algo="sac", value_bins=101))


def test_bins_begin_with_an_entropy_whose_return_they_hold() -> None:
    assert make(BOX).train(draw(BOX, 1)).ent_coef == pytest.approx(1.0)
    assert make(BOX, value_bins=101).train(draw(BOX, 1)).ent_coef == pytest.approx(0.01)
    learner = make(BOX, value_bins=101, ent_coef=0.3)
    assert learner.train(draw(BOX, 1)).ent_coef == pytest.approx(0.3)


def test_returns_are_kept_within_the_bins(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algo": "sac", "value_bins": 11, "value_limit": 3.0}
    scale = replay_loop(BOX, tmp_path, normalize_rewards=True, **settings)._return_scale
    assert scale is not None and scale._limit == 3.0


def test_critics_of_a_user_without_bins_are_refused() -> None:
    config = TrainConfig(algo="sac", value_bins=11)
    actor = SacActor(BOX, config)
    actor.make_critic = TwinCritic
    with pytest.raises(UsageError, match="and the model has TwinCritic"):
        SacLearner(actor, config, BOX, torch.device("cpu"))
