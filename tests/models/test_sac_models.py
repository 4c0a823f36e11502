"""SAC's networks: passes by hand against autograd, stacked layers against `nn.Linear`, NumPy against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from layouts import vector_observation
from linear_networks import networks_of_linear_layers
from torch import nn

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.models.flat import FlatParameters
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.sac import LOG_STD_RANGE, SacActor, TwinCritic
from asyncrl.models.stacked_mlp import StackedLayer, StackedMlp

BOX = EnvSpec("Box", vector_observation(5, "float64"), BoxAction((3,), (-1.0,) * 3, (1.0,) * 3, "float32"), None)
CHOICE = EnvSpec("Choice", vector_observation(5, "float64"), DiscreteAction(4, 0), None)


def flat_actor(spec: EnvSpec, settings: dict[str, Any]) -> tuple[SacActor, FlatParameters]:
    """An actor whose parameters and statistics are all far from their initial values."""
    actor = SacActor(spec, TrainConfig(**settings))
    flat = FlatParameters(actor, with_grad=False)
    generator = torch.Generator().manual_seed(5)
    flat.data.copy_(0.5 * torch.randn(flat.size, generator=generator))
    actor.statistics.copy_(torch.rand(actor.statistics.shape, generator=generator) + 0.5)
    return actor, flat


@pytest.mark.parametrize(("layers", "num_layers"), [(None, 3), ([], 1), ([8], 2)])
def test_critics_have_the_hidden_layers_of_the_policy_or_their_own(layers: list[int] | None, num_layers: int) -> None:
    critics = TwinCritic(BOX, TrainConfig(algo="sac", encoder_mlp_layers=[8, 8], critic_mlp_layers=layers))
    assert len(critics.mlp.layers()) == num_layers


def stacked(nonlinearity: str, layer_norm: bool, widths: list[int], num_networks: int = 2) -> StackedMlp:
    torch.manual_seed(3)
    mlp = StackedMlp(num_networks, widths, nonlinearity, None, layer_norm).double()
    for parameter in mlp.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return mlp


def compare_gradients(ours: Sequence[StackedLayer], networks: list[nn.Sequential]) -> None:
    for number, network in enumerate(networks):
        theirs = iter([parameter.grad for parameter in network.parameters()])
        for layer in ours:
            weight = layer.weight[number] if layer is ours[-1] else layer.weight[number].t()
            torch.testing.assert_close(weight, next(theirs))
            for tensor in layer[1:]:
                if tensor is not None:
                    torch.testing.assert_close(tensor[number].flatten(), next(theirs))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("widths", [[4, 1], [4, 6, 1], [4, 6, 5, 3]], ids=str)
def test_passes_by_hand_are_those_of_linear_layers_and_autograd(
    widths: list[int], nonlinearity: str, layer_norm: bool
) -> None:
    mlp = stacked(nonlinearity, layer_norm, widths)
    networks = networks_of_linear_layers(mlp)
    inputs = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([network(inputs) for network in networks])
    torch.testing.assert_close(mlp(inputs), expected)

    flat = FlatParameters(mlp)
    written = flat.grad + torch.nan  # what a pass leaves unwritten shows
    passes = MlpPass(nonlinearity)
    for _ in range(2):  # the second pass finds the buffers of the first
        torch.testing.assert_close(passes.forward(mlp.layers_in(flat.data), inputs.detach()), expected.detach())
        # Gradients of the first five rows only.
        gradient = torch.randn(2, 5, widths[-1], dtype=torch.float64)
        expected[:, :5].backward(gradient, retain_graph=True)
        by_inputs = passes.backward(mlp.layers_in(flat.data), gradient, mlp.layers_in(written), slice(1, 4))
        assert by_inputs is not None and inputs.grad is not None
        torch.testing.assert_close(by_inputs.sum(0), inputs.grad[:5, 1:])
        compare_gradients(mlp.layers_in(written), networks)
        inputs.grad = None
        for network in networks:
            network.zero_grad()


def test_without_gradients_wanted_none_are_written() -> None:
    mlp = stacked("relu", False, [4, 6, 1])
    flat = FlatParameters(mlp)
    passes = MlpPass("relu")
    passes.forward(mlp.layers_in(flat.data), torch.randn(7, 4, dtype=torch.float64))
    assert passes.backward(mlp.layers_in(flat.data), torch.ones(2, 7, 1, dtype=torch.float64)) is None
    assert not flat.grad.any()


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_a_gradient_goes_back_from_the_parameters_to_the_outputs(spec: EnvSpec) -> None:
    actor = SacActor(spec, TrainConfig()).double()
    outputs = (3.0 * torch.randn(6, actor.distribution.num_parameters, dtype=torch.float64)).requires_grad_()
    parameters = actor.parameters_of(outputs)
    gradient = torch.randn_like(parameters)
    parameters.backward(gradient)
    torch.testing.assert_close(actor.outputs_gradient(parameters.detach(), gradient.clone()), outputs.grad)


def test_log_deviations_stay_in_their_range_and_keep_a_gradient_at_its_ends() -> None:
    raw = torch.tensor([-15.0, -5.0, 0.0, 15.0], requires_grad=True)
    limited = LOG_STD_RANGE.limit(raw)
    limited.sum().backward()
    limited = limited.detach()
    assert float(limited.min()) > -5.0 and float(limited.max()) < 2.0
    assert raw.grad is not None and (raw.grad > 0.0).all()
    assert float(limited[2]) == -1.5 and float(raw.grad[2]) == 1.0


@pytest.mark.parametrize("std", [0.3, 1.0, 7.0])
def test_the_deviation_at_the_start_is_the_setting(std: float) -> None:
    actor = SacActor(BOX, TrainConfig(initial_stddev=std))
    log_std = actor(torch.randn(50, 5))[:, 3:]
    torch.testing.assert_close(log_std.exp(), torch.full_like(log_std, std), atol=0.0, rtol=0.1)


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "choice"])
def test_acting_draws_from_the_parameters_and_plays_their_mode(spec: EnvSpec) -> None:
    actor, _ = flat_actor(spec, {})
    obs = torch.randn(6, 5)
    result = actor.act(obs, torch.Generator().manual_seed(1))
    again = actor.act(obs, torch.Generator().manual_seed(1))
    assert torch.equal(result.action, again.action)
    torch.testing.assert_close(result.log_prob, actor.distribution.log_prob(result.action_parameters, result.action))
    mode = actor.distribution.mode(actor(actor.normalize_obs(obs)))
    assert torch.equal(actor.act(obs, deterministic=True).action, mode)


@pytest.mark.parametrize("initialization", ["orthogonal", "torch_default"])
def test_each_critic_has_weights_of_its_own_drawn_as_those_of_one_network(initialization: Any) -> None:
    critic = TwinCritic(BOX, TrainConfig(encoder_mlp_layers=[32, 32], policy_initialization=initialization))
    _, layer, head = critic.requires_grad_(False).mlp.layers()
    assert not torch.allclose(layer.weight[0], layer.weight[1], atol=0.01)
    for number in range(2):
        weight, bias = layer.weight[number], layer.bias[number]
        if initialization == "orthogonal":
            torch.testing.assert_close(weight.t() @ weight, 2.0 * torch.eye(32), atol=1e-5, rtol=0.0)
            assert not bias.any() and float(head.weight[number].norm()) == pytest.approx(1.0, rel=1e-5)
        else:
            bound = 1.0 / 32**0.5
            assert 0.9 * bound < float(weight.abs().max()) <= bound and 0.0 < float(bias.abs().max()) <= bound
