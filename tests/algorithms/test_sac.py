"""SAC's losses on cases solved by hand and by brute force."""

from __future__ import annotations

import pytest
import torch
from replay_learners import make
from torch import Tensor
from transitions import BOX

from asyncrl.algorithms import sac
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
    value = sac.soft_value(values, log_probs, log_prob, ALPHA, num_groups=2)
    for row in range(5):
        sums = [sum(log_probs[row, n].exp() * critic[row, n] for n in range(5)) for critic in values]
        entropy = -sum(log_probs[row, n].exp() * log_probs[row, n] for n in range(5)) - log_prob[row]
        torch.testing.assert_close(value[row], min(sums) + ALPHA * entropy)
    moved = values.clone()
    moved[0, :, :3] += 10.0
    moved[0, :, 3:] -= 10.0
    torch.testing.assert_close(sac.soft_value(moved, log_probs, log_prob, ALPHA, num_groups=2), value)


@pytest.mark.parametrize(("entropy", "sign"), [(-2.0, -1.0), (0.5, 1.0)])
def test_too_little_entropy_raises_the_coefficient_and_too_much_lowers_it(entropy: float, sign: float) -> None:
    algorithm = make(BOX, target_entropy=-1.0).algorithm
    algorithm.log_ent_coef.fill_(0.7)
    loss = algorithm.adapt_ent_coef(torch.tensor(entropy), None)
    assert float(algorithm.ent_coef_gradient) * sign > 0.0
    assert float(loss) == pytest.approx(0.7 * (entropy + 1.0))
