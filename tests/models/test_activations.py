"""The quick tanh is tanh, and so is its gradient."""

from __future__ import annotations

import pytest
import torch

from asyncrl.models.activations import tanh_


@pytest.mark.parametrize("size", [10, 40_000])
def test_tanh_and_its_gradient(size: int) -> None:
    points = torch.linspace(-20.0, 20.0, size)
    weights = torch.linspace(-1.0, 1.0, size)
    points.requires_grad_()
    activated = tanh_(points * 1.0)
    (activated * weights).sum().backward()
    expected = torch.tanh(points.detach().double())
    torch.testing.assert_close(activated.detach().double(), expected, atol=3e-7, rtol=0.0)
    expected_grad = weights.double() * (1.0 - expected.square())
    assert points.grad is not None
    torch.testing.assert_close(points.grad.double(), expected_grad, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("size", [10, 40_000])
def test_a_narrower_format_has_the_errors_of_its_own_rounding_only(size: int) -> None:
    points = torch.linspace(-1.0, 1.0, size).bfloat16()
    assert torch.equal(tanh_(points.clone()), torch.tanh(points))
