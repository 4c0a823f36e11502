"""SAC's blocks against their papers' formulas, one network and one vector at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from transitions import BOX

from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics import block_network
from asyncrl.contrib.critics.block_network import BatchRenorm, BlockNetwork, UnitLinear
from asyncrl.models.sac import SacActor, make_network
from asyncrl.models.stacked_mlp import StackedMlp


def make(widths: list[int], **settings: Any) -> BlockNetwork:
    """Two networks in float64 whose parameters all differ from those at the start."""
    config = TrainConfig(algo="sac", nonlinearity="relu", **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = make_network(2, widths, config, head_gain=None)
    assert isinstance(network, BlockNetwork)
    generator = torch.Generator().manual_seed(3)
    for parameter in network.double().parameters():
        parameter.data += 0.3 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return network


def of_network(network: nn.Module, idx: int) -> list[Tensor]:
    """The parameters of one of the networks, in the order in which they are applied."""
    return [parameter[idx] for parameter in network.parameters()]


def unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum().sqrt()


INPUTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_residual_blocks_add_to_what_they_normalize() -> None:
    network = make([3, 4, 4, 2], residual_blocks=True)
    for idx, outputs in enumerate(network(INPUTS)):
        embed, embed_bias, *blocks, norm, norm_bias, head, head_bias = of_network(network, idx)
        assert len(blocks) == 2 * 6
        for vector, output in zip(INPUTS, outputs, strict=True):
            features = embed @ vector + embed_bias[0]
            for start in (0, 6):
                gain, shift, first, first_bias, second, second_bias = blocks[start : start + 6]
                inner = layer_norm(features, (4,), eps=1e-5) * gain[0] + shift[0]
                features = features + second @ torch.relu(first @ inner + first_bias[0]) + second_bias[0]
            features = layer_norm(features, (4,), eps=1e-5) * norm[0] + norm_bias[0]
            torch.testing.assert_close(output, head @ features + head_bias[0])


def test_hyperspherical_blocks_move_unit_vectors_by_learned_shares() -> None:
    network = make([3, 4, 4, 2], residual_blocks=True, hyperspherical_weights=True)
    size, wide, share = (2 / 4) ** 0.5, (2 / 16) ** 0.5, 4**-0.5
    for idx, outputs in enumerate(network(INPUTS)):
        embed, scale, *blocks, last, last_scale, head, head_bias = of_network(network, idx)
        for vector, output in zip(INPUTS, outputs, strict=True):
            features = embed @ unit(torch.cat((vector, vector.new_tensor([3.0]))))
            features = unit(features * scale[0] * (size / size))
            for start in (0, 4):
                first, inner_scale, second, shares = blocks[start : start + 4]
                change = unit(second @ torch.relu((first @ features) * inner_scale[0] * (wide / wide)))
                # A share begins at 1 / (number of blocks + 1), its parameter at 1 / sqrt(width).
                features = unit(features + shares[0] * (1 / 3 / share) * (change - features))
            torch.testing.assert_close(output, head @ ((last @ features) * last_scale[0]) + head_bias[0])


def test_hyperspherical_layers_without_blocks() -> None:
    network = make([3, 4, 5, 2], hyperspherical_weights=True)
    for idx, outputs in enumerate(network(INPUTS)):
        first, first_scale, second, second_scale, last, last_scale, head, head_bias = of_network(network, idx)
        for vector, output in zip(INPUTS, outputs, strict=True):
            features = unit(torch.cat((vector, vector.new_tensor([3.0]))))
            features = unit(torch.relu((first @ features) * first_scale[0]))
            features = unit(torch.relu((second @ features) * second_scale[0]))
            torch.testing.assert_close(output, head @ ((last @ features) * last_scale[0]) + head_bias[0])


def test_factors_begin_as_the_papers_have_them() -> None:
    config = TrainConfig(algo="sac", residual_blocks=True, hyperspherical_weights=True)
    network = make_network(2, [3, 8, 8, 2], config, head_gain=None)
    found = [m.factor[0, 0, 0].item() * m._unit for m in network.modules() if isinstance(m, block_network.Scale)]
    inner = (2 / 32) ** 0.5
    assert found == pytest.approx([0.5, inner, 1 / 3, inner, 1 / 3, 1.0])
    sizes = [m.factor[0, 0, 0].item() for m in network.modules() if isinstance(m, block_network.Scale)]
    assert sizes == pytest.approx([0.5, inner, 8**-0.5, inner, 8**-0.5, 1.0])


def test_weights_have_length_one_at_the_start_and_after_a_projection() -> None:
    network = make([3, 4, 4, 2], residual_blocks=True, hyperspherical_weights=True)
    layers = [layer for layer in network.modules() if isinstance(layer, UnitLinear)]
    assert len(layers) == 7  # the embedding, two of each block, two of the head
    for layer in layers:
        layer.project()
        torch.testing.assert_close(layer.weight.square().sum(-1), torch.ones(layer.weight.shape[:-1]).double())
    fresh = make_network(2, [3, 4, 2], TrainConfig(algo="sac", hyperspherical_weights=True), None)
    for layer in fresh.modules():
        if isinstance(layer, UnitLinear):
            torch.testing.assert_close(layer.weight.square().sum(-1), torch.ones(layer.weight.shape[:-1]))


def renorm(num_updates: int) -> BatchRenorm:
    layer = BatchRenorm(2, 3).double()
    generator = torch.Generator().manual_seed(4)
    for parameter in (layer.weight, layer.bias, layer.running_mean, layer.running_variance):
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.5
    layer.num_updates.data.fill_(num_updates)
    return layer


FEATURES = 4.0 * torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
FEATURES[1, :, 0] = 40.0 + 100.0 * FEATURES[1, :, 0]  # beyond both limits


def renormalized(layer: BatchRenorm, features: Tensor, is_warm: bool) -> Tensor:
    """Ioffe 2017, algorithm 1: r and d are constants for the gradient."""
    mean, variance = features.mean(1, keepdim=True), features.var(1, correction=0, keepdim=True)
    running = (layer.running_variance.detach() + 1e-3).sqrt()
    r = ((variance + 1e-3).sqrt() / running).clamp(1 / 3, 3.0).detach()
    d = ((mean - layer.running_mean.detach()) / running).clamp(-5.0, 5.0).detach()
    normalized = (features - mean) / (variance + 1e-3).sqrt()
    return (normalized * r + d if is_warm else normalized) * layer.weight + layer.bias


@pytest.mark.parametrize("is_warm", [False, True])
def test_batch_renormalization_is_ioffes_with_the_gradient_of_autograd(is_warm: bool) -> None:
    results = []
    for compute in ("layer", "formula"):
        layer = renorm(100_000 if is_warm else 99_999)
        layer.uses_batch = True
        features = FEATURES.clone().requires_grad_()
        outputs = layer(features) if compute == "layer" else renormalized(layer, features, is_warm)
        (outputs * outputs.detach().cos()).sum().backward()
        assert layer.weight.grad is not None and layer.bias.grad is not None
        results.append((outputs.detach(), features.grad, layer.weight.grad, layer.bias.grad))
        assert layer.running_mean.grad is layer.running_variance.grad is layer.num_updates.grad is None
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_it_acts_with_running_statistics_which_move_by_a_hundredth_of_each_batch() -> None:
    layer = renorm(7)
    mean, variance = layer.running_mean.clone(), layer.running_variance.clone()
    expected = (FEATURES - mean) / (variance + 1e-3).sqrt() * layer.weight + layer.bias
    torch.testing.assert_close(layer(FEATURES), expected)
    layer.uses_batch = True
    layer(FEATURES)
    layer.after_step(torch.tensor(True))  # a skipped step
    assert torch.equal(layer.running_mean, mean) and float(layer.num_updates) == 7
    layer.after_step(torch.tensor(False))
    torch.testing.assert_close(layer.running_mean, 0.99 * mean + 0.01 * FEATURES.mean(1, keepdim=True))
    of_batch = FEATURES.var(1, correction=0, keepdim=True)
    torch.testing.assert_close(layer.running_variance, 0.99 * variance + 0.01 * of_batch)
    assert float(layer.num_updates) == 8


def test_batch_renormalization_is_at_the_inputs_and_after_each_activation() -> None:
    network = make([3, 4, 5, 2], batch_renorm=True)
    kinds = [type(layer).__name__ for layer in network.hidden]
    one = ["StackedLinear", "Activation", "BatchRenorm"]
    assert kinds == ["BatchRenorm", *one, *one]
    widths = [layer.weight.shape[-1] for layer in network.hidden if isinstance(layer, BatchRenorm)]
    assert widths == [3, 4, 5]


def test_blocks_are_normalized_by_the_batch_where_both_are_asked_for() -> None:
    network = make([3, 4, 4, 2], residual_blocks=True, batch_renorm=True)
    assert sum(isinstance(layer, BatchRenorm) for layer in network.modules()) == 4  # inputs, two blocks, the end
    assert not any(isinstance(layer, block_network.StackedLayerNorm) for layer in network.modules())


def test_without_blocks_it_is_a_perceptron() -> None:
    assert isinstance(make_network(2, [3, 4, 2], TrainConfig(), None), StackedMlp)
    assert isinstance(make_network(2, [3, 2], TrainConfig(algo="sac", batch_renorm=True), None), StackedMlp)


@pytest.mark.parametrize("kind", ["residual_blocks", "hyperspherical_weights", "batch_renorm"])
def test_log_deviations_of_blocks_have_the_whole_range_and_a_gradient_everywhere(kind: str) -> None:
    actor = SacActor(BOX, TrainConfig(algo="sac", encoder_mlp_layers=[8], **{kind: True}))
    middle, half_range = (-1.5, 3.5) if kind == "batch_renorm" else (-4.0, 6.0)
    raw = torch.tensor([-2.0, 3.0])
    outputs = torch.cat((torch.zeros(2), raw)).unsqueeze(0).requires_grad_()
    log_std = actor.parameters_of(outputs)[0, 2:]
    slope = half_range if kind == "batch_renorm" else 1.0
    torch.testing.assert_close(log_std, middle + half_range * torch.tanh(raw / slope))
    log_std.sum().backward()
    assert outputs.grad is not None and (outputs.grad[0, 2:] > 0.0).all()


@pytest.mark.parametrize("std", [0.018, 0.5])
@pytest.mark.parametrize("kind", ["residual_blocks", "hyperspherical_weights", "batch_renorm"])
def test_the_bias_of_blocks_alone_gives_the_deviation_of_the_setting(kind: str, std: float) -> None:
    settings: dict[str, Any] = {kind: True}
    actor = SacActor(BOX, TrainConfig(algo="sac", encoder_mlp_layers=[8], initial_stddev=std, **settings))
    assert isinstance(actor.mlp, BlockNetwork)
    log_std = actor.parameters_of(actor.mlp.head_bias.detach())[0, 2:]
    torch.testing.assert_close(log_std.exp(), torch.full_like(log_std, std), atol=0.0, rtol=1e-3)


@pytest.mark.parametrize(
    "settings", [{"residual_blocks": True}, {"hyperspherical_weights": True}, {"batch_renorm": True}]
)
def test_autocast_does_not_round_outputs(settings: dict[str, Any]) -> None:
    network = make([3, 8, 8, 2], **settings).float()
    exact = 200.6  # bfloat16 would make it 201
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.fill_(exact)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = network(INPUTS.float())
    torch.testing.assert_close(outputs, torch.full(outputs.shape, exact), rtol=1e-6, atol=0.0)
