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


def test_a_constant_element_keeps_a_usable_deviation() -> None:
    moments = RunningMoments(1, torch.device("cpu"))
    moments.update(torch.full((10, 1), 3.0))
    assert float(moments.mean) == 3.0
    assert 1e-3 < float(moments.std) < 1e-2


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
    """Returns of 0 before the first reward would make that reward hundreds of deviations."""
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
