"""Recurrent cores: whole sequences give what one step after the other gives, wherever episodes end."""

from __future__ import annotations

import pytest
import torch
from layouts import vector_observation
from torch import Tensor

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.cores import RecurrentCore, unroll_after
from asyncrl.models.encoders import Inputs

NUM_ROWS, NUM_COLUMNS, NUM_FEATURES = 9, 7, 4


def make(kind: str, num_layers: int) -> RecurrentCore:
    torch.manual_seed(0)
    config = TrainConfig(use_rnn=True, rnn_type=kind, rnn_size=5, rnn_num_layers=num_layers)
    return RecurrentCore(NUM_FEATURES, config)


def looped(core: RecurrentCore, features: Tensor, state: Tensor, begins: Tensor) -> Tensor:
    outputs = []
    for row in range(len(features)):
        output, state = core.step(features[row], state.masked_fill(begins[row].unsqueeze(1), 0.0))
        outputs.append(output)
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_sequences_give_what_single_steps_give(kind: str, num_layers: int, share: float) -> None:
    core = make(kind, num_layers)
    features, state = torch.randn(NUM_ROWS, NUM_COLUMNS, NUM_FEATURES), torch.randn(NUM_COLUMNS, core.state_size)
    begins = torch.rand(NUM_ROWS, NUM_COLUMNS) < share
    expected = looped(core, features, state, begins)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), list(core.parameters()))
    num_pieces = NUM_COLUMNS + int(begins[1:].sum())
    for room in (0, num_pieces, 2 * num_pieces):  # packed, and padded
        found = core.unroll(features, state, begins, room)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        gradients = torch.autograd.grad((found * weight).sum(), list(core.parameters()))
        for ours, theirs in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("share", "num_pieces"), [(0.0, 0), (0.3, 0), (0.3, NUM_ROWS * NUM_COLUMNS)])
def test_a_core_stays_in_float32_under_autocast(kind: str, share: float, num_pieces: int) -> None:
    core = make(kind, 1)
    features, state = torch.randn(NUM_ROWS, NUM_COLUMNS, NUM_FEATURES), torch.randn(NUM_COLUMNS, core.state_size)
    begins = torch.rand(NUM_ROWS, NUM_COLUMNS) < share
    of_encoder = features.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = core.unroll(of_encoder, state, begins, num_pieces)
    assert torch.equal(found, core.unroll(of_encoder.float(), state, begins, num_pieces))


class Strict(torch.nn.Module):
    """A core that takes features of the state's dtype only."""

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return torch.lerp(state, features, 0.5), torch.lerp(state, features, 0.5)

    def unroll(self, features: Tensor, state: Tensor, begins: Tensor) -> Tensor:
        return torch.stack([self.step(row, state)[0] for row in features])


def test_an_actor_critic_runs_a_registered_core_in_float32_under_autocast() -> None:
    spec = EnvSpec("Choice", vector_observation(3), DiscreteAction(2, 0), None)
    model = ActorCritic(spec, TrainConfig(use_rnn=True, rnn_size=4, encoder_mlp_layers=[4]))
    model.actor_core, model.critic_core = Strict(), Strict()
    with torch.autocast("cpu", torch.bfloat16):
        result = model.unroll(Inputs(torch.ones(6, 3)), torch.zeros(2, 8), torch.zeros(3, 2, dtype=torch.bool))
    assert result.normalized_value.shape == (6,)


@pytest.mark.parametrize("has_grad", [False, True])
def test_a_registered_core_runs_in_float32_under_autocast(has_grad: bool) -> None:
    encoder = torch.nn.Linear(3, 4)
    inputs, begins = Inputs(torch.ones(6, 3)), torch.zeros(3, 2, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(has_grad):
        unrolled = unroll_after(lambda given: encoder(given.floats), Strict(), inputs, torch.zeros(2, 4), begins, 1)
    assert unrolled.shape == (4, 4) and unrolled.dtype == torch.float32
