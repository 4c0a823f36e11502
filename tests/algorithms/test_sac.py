"""SAC's losses on cases solved by hand and by brute force."""

from __future__ import annotations

import math

import pytest
import torch
from sac_learners import make
from torch import Tensor
from transitions import BOX

from asyncrl.algorithms import distributional_sac, sac
from asyncrl.models.distributions import SquashedGaussian

ALPHA = torch.tensor(0.3, dtype=torch.float64)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_samples_come_with_the_density_of_the_distribution_also_far_out() -> None:
    parameters, noise = randn(9, 4), randn(9, 2)
    parameters[0, :2] = torch.tensor([40.0, -40.0])  # where tanh rounds to one
    sample = sac.draw_squashed(parameters, noise)
    raw = parameters[:, :2] + parameters[:, 2:].exp() * noise
    torch.testing.assert_close(sample.action, raw.tanh())
    torch.testing.assert_close(sample.log_prob, SquashedGaussian(2).log_prob(parameters, raw))
    assert torch.isfinite(sac.draw_squashed(parameters.float(), noise.float()).log_prob).all()


def test_of_choices_in_groups_the_critic_with_the_smaller_sum_counts() -> None:
    """Only the sum of a critic is trained: a constant may move from one group to another."""
    log_probs = torch.cat((randn(5, 3).log_softmax(-1), randn(5, 2).log_softmax(-1)), dim=1)
    values, log_prob = randn(2, 5, 5), randn(5)
    value = sac.soft_value_of_parts(values, log_probs, log_prob, ALPHA, num_groups=2)
    for row in range(5):
        sums = [sum(log_probs[row, n].exp() * critic[row, n] for n in range(5)) for critic in values]
        entropy = -sum(log_probs[row, n].exp() * log_probs[row, n] for n in range(5)) - log_prob[row]
        torch.testing.assert_close(value[row], min(sums) + ALPHA * entropy)
    moved = values.clone()
    moved[0, :, :3] += 10.0
    moved[0, :, 3:] -= 10.0
    torch.testing.assert_close(sac.soft_value_of_parts(moved, log_probs, log_prob, ALPHA, num_groups=2), value)


@pytest.mark.parametrize(("entropy", "sign"), [(-2.0, -1.0), (0.5, 1.0)])
def test_too_little_entropy_raises_the_coefficient_and_too_much_lowers_it(entropy: float, sign: float) -> None:
    algorithm = make(BOX, target_entropy=-1.0).algorithm
    algorithm.log_ent_coef.fill_(0.7)
    loss = algorithm.adapt_ent_coef(torch.tensor(entropy), None)
    assert float(algorithm.ent_coef_gradient) * sign > 0.0
    assert float(loss) == pytest.approx(0.7 * (entropy + 1.0))


def test_a_distribution_is_projected_as_a_loop_over_its_bins_does() -> None:
    support, returns = torch.linspace(-2.0, 2.0, 5).double(), 1.5 * randn(7, 5)
    returns[0] = torch.tensor([-2.0, -9.0, 2.0, 9.0, 1.0])  # on a bin, and beyond the last ones
    probabilities = randn(7, 5).softmax(-1)
    expected = torch.zeros(7, 5, dtype=torch.float64)
    for row in range(7):
        for probability, value in zip(probabilities[row], returns[row].clamp(-2.0, 2.0), strict=True):
            for idx, center in enumerate(support):
                expected[row, idx] += probability * max(0.0, 1.0 - float((value - center).abs()))
    projected = distributional_sac.project_distribution(probabilities, returns, support)
    torch.testing.assert_close(projected, expected)
    inside = (probabilities * returns.clamp(-2.0, 2.0)).sum(-1)
    torch.testing.assert_close(projected @ support, inside)  # the mean stays
    returns[3, 2] = math.nan
    assert (
        projected.shape == (7, 5)
        and distributional_sac.project_distribution(probabilities, returns, support)[3].isnan().any()
    )


def test_targets_have_the_distribution_with_the_smaller_mean_of_each_choice() -> None:
    support, bin_log_probs, log_probs = torch.linspace(-1.0, 1.0, 3).double(), randn(2, 6, 4, 3), randn(6, 4)
    bin_log_probs, log_probs = bin_log_probs.log_softmax(-1), log_probs.log_softmax(-1)
    expected = torch.zeros(6, 3, dtype=torch.float64)
    for row in range(6):
        for choice in range(4):
            both = bin_log_probs[:, row, choice].exp()
            expected[row] += log_probs[row, choice].exp() * min(both, key=lambda each: float(each @ support))
    distribution = distributional_sac.next_distribution(bin_log_probs, support, log_probs)
    torch.testing.assert_close(distribution, expected)
    # Without entropy its mean is the soft value.
    value = sac.soft_value_of_parts(bin_log_probs.exp() @ support, log_probs, randn(6), 0.0 * ALPHA)
    torch.testing.assert_close(distribution @ support, value)


def test_the_cross_entropy_pulls_predictions_to_the_target() -> None:
    logits, target = randn(2, 6, 3).requires_grad_(), randn(6, 3).softmax(-1)
    loss = distributional_sac.distribution_loss(logits.log_softmax(-1), target)
    expected = sum(-(target[b] * logits[k, b].log_softmax(-1)).sum() / 6 for k in range(2) for b in range(6))
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    torch.testing.assert_close(logits.grad, (logits.detach().softmax(-1) - target) / 6)
