"""The actor never sees the parts of an observation that only the critic may see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hidden_parts import KINDS, SPACES, made, rows_of, seen_of

from asyncrl.config.schema import TrainConfig
from asyncrl.inference.acting import ArrayPolicy
from asyncrl.inference.policy import Policy
from asyncrl.models import registry
from asyncrl.models.encoders import Inputs, ObservationEncoder
from asyncrl.models.flat import FlatParameters


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", SPACES)
def test_only_values_change_with_the_hidden_parts(space: str, kind: str) -> None:
    model, spec, _ = made(space, **KINDS[kind])
    rows, others, _ = rows_of(spec, space, 6)
    if kind == "sac":
        torch.testing.assert_close(model.act(rows).action_parameters, model.act(others).action_parameters)
        return
    torch.nn.init.normal_(model.value_head.weight)
    found, other = model.act(rows), model.act(others)
    torch.testing.assert_close(found.action_parameters, other.action_parameters, rtol=0, atol=0)
    assert (found.value != other.value).all()


@pytest.mark.parametrize("space", ["numbers", "nested"])
def test_acting_in_arrays_computes_the_same(space: str) -> None:
    model, spec, _ = made(space)
    FlatParameters(model, with_grad=False)
    model.set_obs_statistics(torch.full((spec.observation_size,), 0.3), torch.full((spec.observation_size,), 2.0))
    torch.nn.init.normal_(model.value_head.weight)
    rows, _, _ = rows_of(spec, space, 5)
    assert model.runs_in_arrays
    found, expected = ArrayPolicy(model, seed=0).act(rows.numpy()), model.act(rows)
    np.testing.assert_allclose(found.action_parameters, expected.action_parameters, atol=1e-6)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "kind"), [("numbers", "plain"), ("images", "plain"), ("nested", "sac"), ("numbers", "rnn")]
)
def test_a_policy_does_without_the_hidden_parts(space: str, kind: str) -> None:
    model, spec, config = made(space, **KINDS[kind])
    policy = Policy(model, spec, config)
    _, _, observations = rows_of(spec, space, 1)
    expected = policy.act(observations[0], deterministic=True)
    policy.reset()
    seen = seen_of(space, observations[0])
    np.testing.assert_array_equal(policy.act(seen, deterministic=True), expected)


def test_an_encoder_of_the_user_is_made_for_what_the_actor_sees() -> None:
    made_for = []

    class Recorded(ObservationEncoder):
        def __init__(self, layout: Any, config: TrainConfig) -> None:
            super().__init__(layout, config)
            made_for.append([part.name for part in layout.parts])

        def forward(self, inputs: Inputs) -> torch.Tensor:
            assert inputs.floats.shape[1] == (6 if len(made_for[0]) == 2 and self is model.actor.encoder else 9)
            return super().forward(inputs)

    registry.register_encoder("recorded")(Recorded)
    model, spec, _ = made("numbers", encoder="recorded")
    assert made_for == [["a", "z"], ["a", "hidden", "z"]]
    model.act(rows_of(spec, "numbers", 3)[0])
