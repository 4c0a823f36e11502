"""Under autocast hidden layers are rounded, and outputs of networks are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.models.factory import make_acting_model
from asyncrl.models.sac import SacActor
from asyncrl.models.stacked_mlp import StackedMlp

EXACT = 200.6
"""bfloat16 would make it 201."""

NUMBERS = spaces.Box(-1.0, 1.0, (3,))
SPEC = spec_of_spaces(NUMBERS, spaces.Box(-1.0, 1.0, (2,)), "Box", None)
OBS = torch.rand(5, 3, generator=torch.Generator().manual_seed(3))
reduced = torch.autocast("cpu", torch.bfloat16)


def give_exact_output(network: nn.Module) -> None:
    """Gives the last layer a bias that bfloat16 cannot hold, and no weights."""
    head = network.head if hasattr(network, "head") else network.layers()[-1]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(EXACT)


def assert_exact(outputs: torch.Tensor) -> None:
    torch.testing.assert_close(outputs, torch.full(outputs.shape, EXACT), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("widths", [[3, 8, 2], [3, 2]])
def test_the_head_of_a_perceptron_is_exact(widths: list[int]) -> None:
    mlp = StackedMlp(2, widths, "relu", None)
    give_exact_output(mlp)
    with reduced:
        assert_exact(mlp(OBS))


def test_the_heads_of_actor_and_critic_are_exact() -> None:
    model: Any = make_acting_model(SPEC, TrainConfig())
    with torch.no_grad():
        for head in (model.policy_head, model.value_head):
            head.weight.zero_()
            head.bias[...] = EXACT
    with torch.no_grad(), reduced:
        result = model(OBS)
    assert_exact(result.action_parameters[:, :2])
    assert_exact(result.normalized_value)


@pytest.mark.parametrize("action", [NUMBERS, spaces.Tuple((NUMBERS, spaces.Discrete(3)))], ids=["box", "mixed"])
def test_all_tensors_of_a_policy_move_with_it_to_another_device(action: spaces.Space[Any]) -> None:
    """A tensor that does not would be copied from the host in each update, which a CUDA graph cannot."""
    model = SacActor(spec_of_spaces(NUMBERS, action, "Own", None), TrainConfig(algo="sac"))
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        tensors = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
        assert all(tensor.untyped_storage().data_ptr() in own for tensor in tensors.values()), tensors
