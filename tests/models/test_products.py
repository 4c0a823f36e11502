"""`products`: equal to PyTorch's own operators, whichever library multiplies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from asyncrl.config import host
from asyncrl.models import products
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp

ROWS = [5, 9, 37]
"""Too few for oneDNN, all of which it multiplies, and with a rest."""

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not HAS_ONEDNN, reason="needs oneDNN"))])
def by_onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Multiplies by the library of the parameter, and small matrices, too."""
    monkeypatch.setattr(products, "onednn_is_faster", lambda: request.param)
    monkeypatch.setattr(products, "SMALLEST_FOR_ONEDNN", 0)
    is_onednn: bool = request.param
    return is_onednn


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the inputs that oneDNN multiplies."""
    shapes: list[tuple[int, ...]] = []
    multiply = products._onednn_linear

    def record(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append(tuple(inputs.shape))
        return multiply(inputs, weight, bias)

    monkeypatch.setattr(products, "_onednn_linear", record)
    return shapes


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("num_networks", [1, 2])
def test_batched_products(
    by_onednn: bool, is_transposed: bool, num_networks: int, calls: list[tuple[int, ...]]
) -> None:
    left = torch.randn(num_networks, 7, 9).transpose(1, 2) if is_transposed else torch.randn(num_networks, 9, 7)
    right = torch.randn(num_networks, 3, 7).transpose(1, 2) if is_transposed else torch.randn(num_networks, 7, 3)
    bias = torch.randn(num_networks, 1, 3)
    out = torch.full((num_networks, 9, 3), torch.nan)
    assert products.bmm(left, right, out=out) is out
    torch.testing.assert_close(out, torch.bmm(left, right))
    torch.testing.assert_close(products.baddbmm(bias, left, right, out=out), torch.bmm(left, right) + bias)
    assert len(calls) == (2 * num_networks if by_onednn else 0)


def test_one_input_for_all_networks_and_some_columns_of_a_weight(by_onednn: bool) -> None:
    """As passes give them: an expanded input, rows of a buffer, columns of a weight."""
    inputs, weight = torch.randn(8, 7), torch.randn(2, 9, 4)
    out = torch.empty(2, 9, 4)[:, :8]
    products.bmm(inputs.expand(2, 8, 7), weight[:, 2:], out=out)
    torch.testing.assert_close(out, torch.stack([inputs @ weight[0, 2:], inputs @ weight[1, 2:]]))


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_products_of_arrays(by_onednn: bool, rows: int, is_transposed: bool, calls: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    left, right, gradient = (rng.normal(size=size).astype(np.float32) for size in ((rows, 7), (7, 3), (rows, 3)))
    if is_transposed:
        left, right, gradient = left.T.copy().T, right.T.copy().T, gradient.T.copy().T
    out, of_rows = np.full((rows, 3), np.nan, np.float32), np.full((7, 3), np.nan, np.float32)
    assert products.dot(left, right, out=out) is out
    assert products.dot_of_rows(left, gradient, out=of_rows) is of_rows
    np.testing.assert_allclose(out, np.dot(left, right), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_rows, np.dot(left.T, gradient), rtol=1e-5, atol=1e-5)
    assert len(calls) == (2 if by_onednn and rows >= 8 else 0)


@pytest.mark.parametrize("kind", ["dense", "columns", "expanded"])
@pytest.mark.parametrize("rows", ROWS)
def test_gradients_of_a_linear_layer(by_onednn: bool, rows: int, kind: str, calls: list[tuple[int, ...]]) -> None:
    inputs = torch.randn(1, 5).expand(rows, 5) if kind == "expanded" else torch.randn(rows, 9)[:, 2:7]
    given = [inputs.contiguous() if kind == "dense" else inputs, torch.randn(4, 5), torch.randn(4)]
    gradients = []
    for compute in (products.linear, functional.linear):
        inputs, weight, bias = (tensor.detach().requires_grad_() for tensor in given)
        outputs = compute(inputs, weight, bias)
        outputs.square().sum().backward()
        gradients.append((outputs.detach(), inputs.grad, weight.grad, bias.grad))
    for own, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(own, expected)
    assert len(calls) == (3 if by_onednn and rows >= 8 else 0)


def test_gradients_of_gradients(by_onednn: bool) -> None:
    weight = torch.randn(4, 5, dtype=torch.float32)
    penalties = []
    for compute in (products.linear, functional.linear):
        own, inputs = weight.clone().requires_grad_(), torch.ones(9, 5, requires_grad=True)
        (by_inputs,) = torch.autograd.grad(compute(inputs, own, torch.zeros(4)).sum(), inputs, create_graph=True)
        by_inputs.square().sum().backward()
        penalties.append(own.grad)
    torch.testing.assert_close(*penalties)


def test_transforms_of_functions(by_onednn: bool) -> None:
    weight, bias, inputs = torch.randn(4, 5), torch.randn(4), torch.randn(3, 9, 5)
    found = torch.func.vmap(lambda each: products.linear(each, weight, bias))(inputs)
    torch.testing.assert_close(found, functional.linear(inputs, weight, bias))
    gradient = torch.func.grad(lambda own: products.linear(inputs[0], own, bias).square().sum())(weight)
    torch.testing.assert_close(gradient, 2.0 * functional.linear(inputs[0], weight, bias).t() @ inputs[0])


def test_many_numbers_of_rows_have_few_kernels(by_onednn: bool, calls: list[tuple[int, ...]]) -> None:
    """oneDNN keeps a kernel for each shape."""
    weight, bias, array = torch.randn(4, 5), torch.zeros(4), np.ones((5, 4), np.float32)
    for rows in range(900, 1100):
        products.linear(torch.randn(rows, 5), weight, bias)
        products.dot(np.ones((rows, 5), np.float32), array, out=np.empty((rows, 4), np.float32))
        products.dot_of_rows(
            np.ones((rows, 5), np.float32), np.ones((rows, 4), np.float32), np.empty((5, 4), np.float32)
        )
    assert len(set(calls)) <= 20 and (len(calls) == 600) == by_onednn


def test_inputs_without_gradient_cost_no_product(by_onednn: bool, calls: list[tuple[int, ...]]) -> None:
    weight, bias = torch.randn(4, 5, requires_grad=True), torch.randn(4, requires_grad=True)
    products.linear(torch.randn(9, 5), weight, bias).sum().backward()
    assert len(calls) == (2 if by_onednn else 0)


@pytest.mark.parametrize("case", ["float64", "autocast", "small", "few rows", "three dimensions"])
def test_what_is_left_to_pytorch(case: str, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, ...]]) -> None:
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    if case != "small":
        monkeypatch.setattr(products, "SMALLEST_FOR_ONEDNN", 0)
    dtype = torch.float64 if case == "float64" else torch.float32
    rows = 7 if case == "few rows" else 9
    inputs, weight, bias = (
        torch.randn(rows, 5, dtype=dtype),
        torch.randn(4, 5, dtype=dtype),
        torch.zeros(4, dtype=dtype),
    )
    inputs = inputs.expand(2, 9, 5) if case == "three dimensions" else inputs
    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        outputs = products.linear(inputs, weight, bias)
        torch.testing.assert_close(outputs, functional.linear(inputs, weight, bias))
    assert outputs.dtype == (torch.bfloat16 if case == "autocast" else dtype)
    assert not calls


@pytest.mark.parametrize(
    ("cpu_info", "capability", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("vendor_id\t: GenuineIntel\n", "AVX512", False),
        (None, "AVX512", False),
    ],
)
@pytest.mark.skipif(not HAS_ONEDNN or not torch.backends.mkl.is_available(), reason="needs MKL and oneDNN")
def test_the_choice_follows_from_the_processor(
    cpu_info: str | None, capability: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if cpu_info is not None:
        (tmp_path / "cpuinfo").write_text(cpu_info)
    monkeypatch.setattr(host, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products.onednn_is_faster.__wrapped__() is expected


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("num_networks", [1, 2])
def test_passes_through_perceptrons_are_those_of_autograd(
    by_onednn: bool, num_networks: int, layer_norm: bool, calls: list[tuple[int, ...]]
) -> None:
    mlp = StackedMlp(num_networks, [9, 16, 12, 3], "relu", None, layer_norm)
    layers = tuple(StackedLayer(*(None if each is None else each.detach() for each in layer)) for layer in mlp.layers())
    own = MlpPass("relu")
    for rows in (10, 20, 10):
        inputs, weights = torch.randn(rows, 9, requires_grad=True), torch.randn(num_networks, rows, 3)
        expected = mlp(inputs)
        mlp.zero_grad()
        (weights * expected).sum().backward()
        gradients = tuple(
            StackedLayer(*(None if each is None else torch.empty_like(each) for each in one)) for one in layers
        )
        torch.testing.assert_close(own.forward(layers, inputs.detach()), expected.detach())
        by_inputs = own.backward(layers, weights, gradients, inputs=slice(2, None))
        assert by_inputs is not None
        torch.testing.assert_close(by_inputs.sum(0), inputs.grad[:, 2:])
        found = [tensor for layer in gradients for tensor in layer if tensor is not None]
        for gradient, parameter in zip(found, mlp.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
    assert bool(calls) == by_onednn
