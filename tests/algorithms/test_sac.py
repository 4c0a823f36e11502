"""SAC's losses: gradients in closed form against autograd of the papers' formulas, and cases solved by hand."""

from __future__ import annotations

import math

import pytest
import torch
from sac_learners import make
from torch import Tensor
from transitions import BOX

from asyncrl.algorithms import sac
from asyncrl.learner.fast import sac_passes
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


def test_the_gradient_of_the_continuous_policy_is_that_of_autograd() -> None:
    parameters, noise, weights = randn(9, 4), randn(9, 2), randn(2, 2)

    def values_of(action: Tensor) -> Tensor:
        return torch.stack([(weight * action).sin().sum(-1) for weight in weights])

    leaf = parameters.clone().requires_grad_()
    mean, log_std = leaf.chunk(2, -1)
    raw = mean + log_std.exp() * noise
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw) - torch.log(1.0 - raw.tanh() ** 2)
    expected = (ALPHA * log_prob.sum(-1) - torch.min(*values_of(raw.tanh()))).mean()
    expected.backward()

    sample = sac.draw_squashed(parameters, noise)
    action = sample.action.clone().requires_grad_()
    values = values_of(action)
    loss = sac_passes.actor_loss(values.detach(), sample.log_prob, ALPHA)
    values.backward(loss.gradient)
    assert action.grad is not None
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(sac_passes.actor_gradient(sample, action.grad, ALPHA), leaf.grad)


def test_the_gradient_of_the_discrete_policy_is_that_of_autograd() -> None:
    logits, values = randn(9, 4).requires_grad_(), randn(2, 9, 4)
    probabilities = logits.softmax(-1)
    expected = (probabilities * (ALPHA * probabilities.log() - torch.min(values[0], values[1]))).sum(-1).mean()
    expected.backward()
    log_probs = logits.detach().log_softmax(-1).requires_grad_()
    loss = sac_passes.choices_actor_loss(log_probs.detach(), values, ALPHA)
    (through,) = torch.autograd.grad(logits.log_softmax(-1), logits, loss.gradient)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(through, logits.grad)


def test_the_critics_loss_is_half_the_squared_error_of_each() -> None:
    values, target = randn(2, 9).requires_grad_(), randn(9)
    expected = 0.5 * ((values[0] - target) ** 2).mean() + 0.5 * ((values[1] - target) ** 2).mean()
    expected.backward()
    loss = sac_passes.critic_loss(values.detach(), target)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(loss.gradient, values.grad)


def test_targets_solved_by_hand() -> None:
    values = torch.tensor([[4.0, 1.0, 7.0], [2.0, 3.0, 5.0]])
    next_value = sac_passes.soft_value(values, torch.tensor([-1.0, 2.0, 0.0]), torch.tensor(0.5))
    assert next_value.tolist() == [2.5, 0.0, 5.0]
    # The second is the third step's bootstrap, the third terminated.
    target = make(BOX).algorithm.target(
        torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.125, 0.0]), next_value + 1.0
    )
    assert target.tolist() == [2.75, 1.125, 1.0]


def test_the_value_of_choices_is_the_expectation_over_them() -> None:
    probabilities = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    values = torch.tensor([[[8.0, 0.0], [2.0, 6.0]], [[4.0, 4.0], [2.0, 4.0]]])
    entropy = torch.tensor([0.25 * math.log(4.0) + 0.75 * math.log(4.0 / 3.0), math.log(2.0)])
    value = sac_passes.soft_value_of_choices(values, probabilities.log(), torch.tensor(2.0))
    torch.testing.assert_close(value, torch.tensor([1.0, 3.0]) + 2.0 * entropy)


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
