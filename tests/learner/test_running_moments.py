"""Running moments against the moments of everything at once."""

import pytest
import torch

from asyncrl.learner.optimizer import RunningMoments


def test_merged_batches_have_the_moments_of_all_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 4, generator=generator) * 2.0 + size for size in (1, 500, 30, 0, 3)]
    moments = RunningMoments(4, torch.device("cpu"))
    for batch in batches:
        moments.update(batch)
    everything = torch.cat(batches).double()
    assert moments.count == 534
    torch.testing.assert_close(moments.mean, everything.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(moments.variance, everything.var(0, correction=0), atol=1e-6, rtol=1e-5)


def test_a_large_offset_costs_no_precision() -> None:
    moments = RunningMoments(1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        moments.update(torch.randint(0, 2, (400, 1), generator=generator).float() + 1e6)
    assert abs(float(moments.variance) - 0.25) < 1e-3


@pytest.mark.parametrize("batches", [[3.0, 3.0], [0.1, 0.1, 0.1], [1.0, 1.0 + 6e-8], [0.0, 1e-17], [1e6, 1e6 + 0.06]])
def test_an_element_that_is_constant_up_to_rounding_is_not_divided_by_its_rounding(batches: list[float]) -> None:
    moments = RunningMoments(2, torch.device("cpu"))
    for value in batches:
        moments.update(torch.tensor([[value, -1.0], [value, 1.0]]))
    is_large = batches[0] == 1e6
    assert float(moments.std[0]) == pytest.approx(1.0 if is_large else 1e-5**0.5)
    assert float(moments.std[1]) == pytest.approx((1.0 + 1e-5) ** 0.5), "an ordinary element has 1e-5 added"
    assert float(moments.mean[0]) == pytest.approx(batches[0], abs=0.1)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_normalizing_does_not_depend_on_the_unit_of_an_element(size: float, offset: float) -> None:
    moments = RunningMoments(1, torch.device("cpu"))
    numbers = offset * size + size * torch.randn(4096, 1, generator=torch.Generator().manual_seed(0))
    moments.update(numbers[:1000])
    moments.update(numbers[1000:])
    normalized = (numbers.double() - moments.mean) / moments.std
    assert abs(float(normalized.mean())) < 1e-3
    assert float(normalized.std()) == pytest.approx(1.0, rel=1e-3)


def test_moments_that_are_adopted_give_the_same_divisors() -> None:
    moments, adopting = (RunningMoments(3, torch.device("cpu")) for _ in range(2))
    moments.update(torch.tensor([[2.0, 1e-7, 5.0], [2.0, -1e-7, 9.0]]))
    adopting.adopt(moments.mean, moments.std.float())
    torch.testing.assert_close(adopting.std, moments.std)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("num_before", [0, 5])
def test_a_batch_that_is_not_finite_is_ignored(num_before: int, bad: float) -> None:
    generator = torch.Generator().manual_seed(0)
    moments, expected = (RunningMoments(3, torch.device("cpu")) for _ in range(2))
    before, after = torch.randn(num_before, 3, generator=generator), torch.randn(7, 3, generator=generator)
    spoiled = torch.randn(4, 3, generator=generator)
    spoiled[0, 1] = bad
    for batch in (before, spoiled, after):
        moments.update(batch)
    for batch in (before, after):
        expected.update(batch)
    assert moments.count == expected.count == num_before + 7
    assert torch.equal(moments.mean, expected.mean) and torch.equal(moments.variance, expected.variance)


def test_zeros_before_anything_else_do_not_shrink_the_deviation() -> None:
    """Returns of 0 before the first reward would make that reward hundreds of standard deviations."""
    moments, expected = (RunningMoments(1, torch.device("cpu")) for _ in range(2))
    zeros = torch.zeros(1000, 1)
    moments.update(zeros)
    assert (moments.count, float(moments.mean), float(moments.variance)) == (0, 0.0, 1.0)
    first = torch.cat([torch.zeros(9, 1), torch.ones(1, 1)])
    moments.update(first)
    assert moments.count == 10 and float(moments.variance) == pytest.approx(0.09)
    for batch in (zeros, first):  # from then on zeros count
        moments.update(batch)
    for batch in (first, zeros, first):
        expected.update(batch)
    assert moments.count == expected.count == 1020
    assert torch.equal(moments.mean, expected.mean) and torch.equal(moments.variance, expected.variance)
