"""Losses against numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.a2c import a2c_policy_loss
from asyncrl.algorithms.losses import (
    advantage_sums,
    approximate_kls,
    behaviour_weights,
    clipped_value_loss,
    effective_sample_size,
    explained_variance,
    normalize_advantages,
    squared_value_loss,
)
from asyncrl.algorithms.ppo import clip_range, ppo_policy_loss


def log(*ratios: float) -> Tensor:
    return torch.tensor(ratios).log()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, -2.4), (1.5, -2.0, 3.0), (0.5, 2.0, -1.0), (0.5, -2.0, 1.6), (1.1, 2.0, -2.2)],
)
def test_ppo_takes_the_pessimistic_of_ratio_and_clipped_ratio(ratio: float, advantage: float, expected: float) -> None:
    loss = ppo_policy_loss(log(ratio), torch.tensor([advantage]), clip_range(0.2, "symmetric"))
    assert float(loss) == pytest.approx(expected)


def test_weights_of_older_samples_are_ratios_up_to_the_cap() -> None:
    assert behaviour_weights(log(0.1, 1.0, 4.9, 7.0), 5.0).tolist() == pytest.approx([0.1, 1.0, 4.9, 5.0])
    assert behaviour_weights(torch.tensor([200.0, -200.0]), 5.0).tolist() == [5.0, 0.0]


@pytest.mark.parametrize(
    ("log_weights", "expected"),
    [(log(1.0, 3.0), 0.8), (log(7.0, 7.0, 7.0), 1.0), (torch.tensor([300.0, 0.0, 0.0, 0.0]), 0.25)],
)
def test_the_effective_sample_size_is_the_share_that_counts(log_weights: Tensor, expected: float) -> None:
    assert float(effective_sample_size(log_weights)) == pytest.approx(expected)


def test_reciprocal_clip_range_is_symmetric_in_the_logarithm() -> None:
    low, high = clip_range(0.2, "reciprocal")
    assert (low, high) == pytest.approx((1 / 1.2, 1.2))
    assert clip_range(0.2, "symmetric") == pytest.approx((0.8, 1.2))


def test_a2c_makes_good_actions_likelier() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = a2c_policy_loss(log_prob, torch.tensor([3.0, -1.0]))
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(0.5)
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-1.5, 0.5]


def test_value_loss_is_the_mean_square_and_its_clip_the_larger_error() -> None:
    values, old, returns = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0])
    assert float(squared_value_loss(values, returns)) == pytest.approx(2.0)
    assert float(clipped_value_loss(values, old, returns, clip=0.5)) == pytest.approx((0.25 + 4.0) / 2)


@pytest.mark.parametrize(("num_samples", "num_parts"), [(7, 3), (6, 3), (2, 3), (0, 2)])
def test_each_minibatch_is_normalized_by_itself(num_samples: int, num_parts: int) -> None:
    advantages = torch.arange(float(num_samples)).square()
    normalized = normalize_advantages(advantages, advantage_sums(advantages, num_parts))
    expected = [
        (part - part.mean()) / (part.std(correction=0) + 1e-8)
        for part in advantages.tensor_split(num_parts)
        if len(part)
    ]
    torch.testing.assert_close(normalized, torch.cat([*expected, torch.empty(0)]))


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e6])
def test_normalized_advantages_do_not_depend_on_the_unit_of_rewards(unit: float) -> None:
    advantages = torch.randn(64, generator=torch.Generator().manual_seed(0))
    expected, scaled = (normalize_advantages(each, advantage_sums(each, 2)) for each in (advantages, unit * advantages))
    torch.testing.assert_close(scaled, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4])
def test_equal_advantages_become_zero(value: float) -> None:
    advantages = torch.full((5,), value)
    assert torch.equal(normalize_advantages(advantages, advantage_sums(advantages, 1)), torch.zeros(5))


def test_rows_of_sequences_that_are_no_samples_do_not_count() -> None:
    advantages, nan = torch.tensor([[1.0, math.nan], [3.0, 5.0], [math.nan, 9.0]]), math.nan
    normalized = normalize_advantages(advantages, advantage_sums(advantages, 2, ~advantages.isnan()))
    scale = math.sqrt(8.0 / 3.0)
    expected = torch.tensor([[-2.0 / scale, nan], [0.0, 2.0 / scale], [nan, 0.0]])
    torch.testing.assert_close(normalized, expected, equal_nan=True)


def test_approximate_kl_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    assert float(approximate_kls(log(1.0, 1.0)).mean()) == 0.0
    assert float(approximate_kls(log(2.0)).mean()) == pytest.approx(1.0 - math.log(2.0))


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert float(explained_variance(returns + 5.0, returns)) == pytest.approx(1.0)
    assert float(explained_variance(torch.zeros(3), returns)) == pytest.approx(0.0)
    assert float(explained_variance(-returns, returns)) == pytest.approx(-3.0)
    assert float(explained_variance(returns, torch.ones(3))) == 0.0
