"""Distributions against torch.distributions and against numerical integration."""

# torch.distributions is not typed.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform

from asyncrl.envs.spec import BoxAction, DiscreteAction, stored_action
from asyncrl.models.distributions import Categorical, DiagonalGaussian, SquashedGaussian, make_distribution


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def gaussian_parameters(generator: torch.Generator) -> tuple[Tensor, Independent[Normal]]:
    mean, log_std = torch.randn(7, 3, generator=generator), torch.randn(7, 3, generator=generator) * 0.5
    return torch.cat((mean, log_std), dim=-1), Independent(Normal(mean, log_std.exp()), 1)


def test_gaussian_agrees_with_torch(generator: torch.Generator) -> None:
    ours = DiagonalGaussian(3)
    parameters, theirs = gaussian_parameters(generator)
    other_parameters, others = gaussian_parameters(generator)
    action = torch.randn(7, 3, generator=generator)
    torch.testing.assert_close(ours.log_prob(parameters, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(parameters), theirs.entropy())
    torch.testing.assert_close(ours.kl(parameters, other_parameters), kl_divergence(theirs, others))
    assert torch.equal(ours.mode(parameters), theirs.mean)


def test_squashed_gaussian_agrees_with_torch_on_the_squashed_action(generator: torch.Generator) -> None:
    ours = SquashedGaussian(3)
    parameters, normal = gaussian_parameters(generator)
    theirs = TransformedDistribution(normal, [TanhTransform()])
    raw = torch.randn(7, 3, generator=generator)
    torch.testing.assert_close(ours.log_prob(parameters, raw), theirs.log_prob(raw.tanh()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.5, 0.7), (-1.5, 1.0), (0.3, 2.0)])
def test_squashed_density_integrates_to_one_and_to_its_entropy(mean: float, std: float) -> None:
    distribution = SquashedGaussian(1)
    raw = torch.linspace(-14.0, 14.0, 200_001, dtype=torch.float64).unsqueeze(-1)
    parameters = torch.tensor([[mean, std]], dtype=torch.float64)
    parameters[:, 1].log_()
    log_prob = distribution.log_prob(parameters.expand(len(raw), 2), raw)
    squashed = raw.squeeze(-1).tanh()
    assert float(torch.trapezoid(log_prob.exp(), squashed)) == pytest.approx(1.0, abs=1e-3)
    expected = -float(torch.trapezoid(log_prob.exp() * log_prob, squashed))
    assert float(distribution.entropy(parameters.float())) == pytest.approx(expected, abs=0.01)


def test_squashed_log_prob_is_finite_where_tanh_rounds_to_one() -> None:
    distribution = SquashedGaussian(1)
    parameters = torch.zeros(1, 2)
    for raw in (-40.0, 40.0):
        log_prob = distribution.log_prob(parameters, torch.tensor([[raw]]))
        expected = -0.5 * raw**2 - 0.918939 - 2.0 * (0.693147 - abs(raw))
        assert float(log_prob) == pytest.approx(expected, rel=1e-5)


def test_categorical_agrees_with_torch(generator: torch.Generator) -> None:
    ours = Categorical(5)
    logits, others = (torch.randn(7, 5, generator=generator).log_softmax(-1) for _ in range(2))
    theirs = TorchCategorical(logits=logits)
    action = torch.randint(5, (7,), generator=generator)
    torch.testing.assert_close(ours.log_prob(logits, action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(logits), theirs.entropy())
    torch.testing.assert_close(ours.kl(logits, others), kl_divergence(theirs, TorchCategorical(logits=others)))
    assert torch.equal(ours.mode(logits), logits.argmax(-1))


def test_gaussian_draws_with_its_moments(generator: torch.Generator) -> None:
    parameters = torch.tensor([1.0, -2.0, -0.5, 0.7]).expand(40_000, 4)
    action, _ = DiagonalGaussian(2).sample(parameters, generator)
    torch.testing.assert_close(action.mean(0), parameters[0, :2], atol=0.05, rtol=0.0)
    torch.testing.assert_close(action.std(0), parameters[0, 2:].exp(), atol=0.05, rtol=0.0)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("action", [BoxAction((2, 2), (-1.0,) * 4, (1.0,) * 4, "float32"), DiscreteAction(4, 0)])
def test_a_sample_comes_with_its_own_log_prob(
    action: BoxAction | DiscreteAction, squash: bool, generator: torch.Generator
) -> None:
    distribution = make_distribution(action, squash)
    parameters = torch.randn(50, distribution.num_parameters, generator=generator)
    sample = distribution.sample(parameters, generator)
    dtype, shape = stored_action(action)
    assert sample.action.shape == (50, *shape)
    assert sample.action.dtype == getattr(torch, dtype)
    torch.testing.assert_close(sample.log_prob, distribution.log_prob(parameters, sample.action))
