"""Joint distributions against enumeration of all their actions, with and without masks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.envs.spec import BoxAction, DiscreteAction, MultiDiscreteAction, TreeAction
from asyncrl.models.distributions import Choices, Joint, make_distribution

UNEQUAL = MultiDiscreteAction((2, 3, 3), (0, 0, 5), (3,), "int64")
MASK = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
CONTINUOUS = BoxAction((2,), (-1.0, -1.0), (1.0, 1.0), "float32")
TREE = TreeAction((DiscreteAction(3, 0), CONTINUOUS, UNEQUAL), (("a",), ("b", 0), ("b", 1)))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def all_actions() -> Tensor:
    return torch.tensor(list(itertools.product(range(2), range(3), range(3))), dtype=torch.float32)


@pytest.mark.parametrize("mask", [None, MASK], ids=["free", "masked"])
def test_choices_agree_with_the_enumeration_of_their_actions(mask: Tensor | None, generator: torch.Generator) -> None:
    distribution = make_distribution(UNEQUAL, squash=False)
    outputs, others = torch.randn(1, 8, generator=generator), torch.randn(1, 8, generator=generator)
    row = None if mask is None else mask.unsqueeze(0)
    parameters, other = (distribution.parameters_of(logits, None, row) for logits in (outputs, others))
    actions = all_actions()
    log_prob, other_log_prob = (distribution.log_prob(p.expand(len(actions), -1), actions) for p in (parameters, other))
    allowed = torch.ones(18, dtype=torch.bool)
    if mask is not None:
        allowed = mask[0 + actions[:, 0].long()].bool() & mask[2 + actions[:, 1].long()].bool()
    probability = log_prob.exp()
    assert float(probability[~allowed].sum()) == 0.0
    assert float(probability.sum()) == pytest.approx(1.0, abs=1e-5)
    log_prob, other_log_prob, probability = log_prob[allowed], other_log_prob[allowed], probability[allowed]
    assert float(distribution.entropy(parameters)) == pytest.approx(-float((probability * log_prob).sum()), abs=1e-5)
    divergence = float((probability * (log_prob - other_log_prob)).sum())
    assert float(distribution.kl(parameters, other)) == pytest.approx(divergence, abs=1e-5)
    best = actions[allowed][log_prob.argmax()]
    assert torch.equal(distribution.mode(parameters)[0], best)


@pytest.mark.parametrize("in_arrays", [False, True], ids=["tensors", "arrays"])
def test_what_a_mask_forbids_is_never_drawn_and_the_rest_as_often_as_it_is_likely(in_arrays: bool) -> None:
    distribution, count = make_distribution(UNEQUAL, squash=False), 40_000
    outputs, mask = torch.randn(1, 8, generator=torch.Generator().manual_seed(3)), MASK.unsqueeze(0)
    if in_arrays:
        parameters = distribution.parameter_arrays_of(outputs.numpy().copy(), None, mask.numpy())
        sample = distribution.sample_arrays(np.repeat(parameters, count, axis=0), np.random.default_rng(0))
        actions, log_prob = torch.from_numpy(sample.action), torch.from_numpy(sample.log_prob)
    else:
        parameters = distribution.parameters_of(outputs, None, mask)
        actions, log_prob = distribution.sample(parameters.expand(count, -1), torch.Generator().manual_seed(0))
    expected = distribution.parameters_of(outputs, None, mask)
    torch.testing.assert_close(log_prob, distribution.log_prob(expected.expand(count, -1), actions))
    index = actions @ torch.tensor([9.0, 3.0, 1.0])
    frequency = torch.bincount(index.long(), minlength=18) / count
    probability = distribution.log_prob(expected.expand(18, -1), all_actions()).exp()
    assert not (frequency[probability == 0.0] > 0).any()
    torch.testing.assert_close(frequency, probability, atol=0.01, rtol=0.0)


def test_no_gradient_reaches_what_a_mask_forbids_and_a_mask_of_nothing_forbids_nothing() -> None:
    distribution = make_distribution(UNEQUAL, squash=False)
    outputs = torch.randn(2, 8, requires_grad=True)
    mask = torch.stack((MASK, torch.zeros(8)))
    parameters = distribution.parameters_of(outputs, None, mask)
    action = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]])
    (distribution.log_prob(parameters, action) + distribution.entropy(parameters)).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[0][MASK == 0].tolist() == [0.0, 0.0]
    assert (outputs.grad[0][3:] != 0).all()
    free = distribution.parameters_of(outputs, None, None)
    torch.testing.assert_close(parameters[1], free[1])


def test_a_joint_distribution_is_the_product_of_its_parts(generator: torch.Generator) -> None:
    joint = make_distribution(TREE, squash=False)
    assert isinstance(joint, Joint)
    log_std = torch.tensor([0.3, -0.7])
    outputs = torch.randn(6, 3 + 2 + 8, generator=generator)
    parameters = joint.parameters_of(outputs, log_std)
    actions, log_prob = joint.sample(parameters, generator)
    parts = [Choices(3, 1), make_distribution(CONTINUOUS, squash=False), make_distribution(UNEQUAL, squash=False)]
    own_outputs, own_log_std = torch.split(outputs, [3, 2, 8], dim=1), [None, log_std, None]
    own = [part.parameters_of(o, s) for part, o, s in zip(parts, own_outputs, own_log_std, strict=True)]
    assert torch.equal(parameters, torch.cat(own, dim=1))
    own_actions = torch.split(actions, [1, 2, 3], dim=1)
    terms = [part.log_prob(p, a) for part, p, a in zip(parts, own, own_actions, strict=True)]
    torch.testing.assert_close(log_prob, torch.stack(terms).sum(0))
    torch.testing.assert_close(joint.log_prob(parameters, actions), log_prob)
    entropies = [part.entropy(p) for part, p in zip(parts, own, strict=True)]
    torch.testing.assert_close(joint.entropy(parameters), torch.stack(entropies).sum(0))
    assert joint.stddev_positions == [5, 6]
    torch.testing.assert_close(parameters[:, joint.stddev_positions], log_std.expand(6, 2))


@pytest.mark.parametrize("adaptive", [False, True])
def test_arrays_and_tensors_give_the_same_parameters(adaptive: bool, generator: torch.Generator) -> None:
    joint = make_distribution(TREE, squash=True)
    log_std = None if adaptive else torch.tensor([0.3, -0.7])
    outputs = torch.randn(6, joint.num_parameters - (0 if adaptive else 2), generator=generator) * 3.0
    mask = (torch.rand(6, joint.num_logits, generator=generator) < 0.5).float()
    expected = joint.parameters_of(outputs, log_std, mask)
    arrays = joint.parameter_arrays_of(
        outputs.numpy().copy(), None if log_std is None else log_std.numpy(), mask.numpy()
    )
    np.testing.assert_allclose(arrays, expected.numpy(), rtol=1e-4, atol=1e-5)
    sample = joint.sample_arrays(arrays, np.random.default_rng(0))
    log_prob = joint.log_prob(expected, torch.from_numpy(sample.action))
    np.testing.assert_allclose(sample.log_prob, log_prob.numpy(), rtol=1e-4, atol=1e-4)
