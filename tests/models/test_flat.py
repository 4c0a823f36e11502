"""Flat parameters share memory with the module, and a block carries one version whole."""

import pytest
import torch
from critics import with_values
from layouts import vector_observation

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import BoxAction, EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, block_size, read_block, write_block

SPEC = EnvSpec("Box", vector_observation(5, "float64"), BoxAction((3,), (-1.0,) * 3, (1.0,) * 3, "float32"), None)


def make_model(seed: int = 0) -> ActorCritic:
    return with_values(ActorCritic(SPEC, TrainConfig(seed=seed, encoder_mlp_layers=[8])))


def test_flattening_keeps_what_the_model_computes() -> None:
    model, obs = make_model(), torch.randn(4, 5)
    before = model(obs)
    flat = FlatParameters(model)
    after = model(obs)
    assert torch.equal(before.action_parameters, after.action_parameters)
    assert torch.equal(before.normalized_value, after.normalized_value)
    flat.data.zero_()
    assert model(obs).normalized_value.tolist() == [0.0] * 4


def test_gradients_arrive_in_the_flat_tensor_step_after_step() -> None:
    model, obs = make_model(), torch.randn(4, 5)
    parts = torch.autograd.grad(_loss(model, obs), list(model.parameters()))
    expected = torch.cat([part.flatten() for part in parts])
    flat = FlatParameters(model)
    for _ in range(2):
        flat.grad.zero_()
        torch.autograd.backward(_loss(model, obs))
        torch.testing.assert_close(flat.grad, expected)


def test_a_block_carries_weights_and_statistics() -> None:
    sender, receiver, obs = make_model(seed=1), make_model(seed=2), torch.randn(4, 5)
    sender.statistics.copy_(torch.rand(12) + 1.0)
    sender_flat, receiver_flat = FlatParameters(sender), FlatParameters(receiver, with_grad=False)
    block = torch.full((block_size(sender),), torch.nan)
    write_block(sender, sender_flat, block)
    read_block(receiver, receiver_flat, block)
    for ours, theirs in zip(receiver.act(obs, _generator()), sender.act(obs, _generator()), strict=True):
        assert torch.equal(ours, theirs)


def test_a_block_of_another_model_is_refused() -> None:
    model = make_model()
    flat = FlatParameters(model)
    with pytest.raises(ValueError, match=rf"has {block_size(model)} elements, got shape \(7,\)"):
        read_block(model, flat, torch.zeros(7))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _loss(model: ActorCritic, obs: torch.Tensor) -> torch.Tensor:
    parameters, value = model(obs)
    loss: torch.Tensor = parameters.sum() + value.sum()
    return loss


def test_frozen_parameters_of_a_user_are_published_and_not_trained() -> None:
    model, obs = make_model(), torch.randn(4, 5)
    model.policy_head.weight.requires_grad_(False)
    flat = FlatParameters(model)
    torch.autograd.backward(_loss(model, obs))
    assert not model.policy_head.weight.requires_grad and model.policy_head.bias.requires_grad
    assert not model.policy_head.weight.grad.any() and model.policy_head.bias.grad.any()
    assert flat.size == sum(parameter.numel() for parameter in model.parameters())
