"""The actor never sees the parts of an observation that only the critic may see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.models import registry
from asyncrl.models.array_policy import ArrayPolicy
from asyncrl.models.encoders import Inputs, ObservationEncoder
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters
from asyncrl.policy import Policy

NUMBERS = {"a": Box(-1, 1, (2,)), "hidden": Box(-1, 1, (3,)), "z": Discrete(4)}
NESTED = {"a": Dict({"hidden": Box(-1, 1, (2,)), "seen": Box(-1, 1, (2,))}), "hidden": Discrete(3)}
IMAGES = {
    "a": Box(0, 255, (9, 9), np.uint8),
    "hidden": Box(0, 255, (9, 9), np.uint8),
    "a_hidden": Box(0, 1, (9, 9)),
    "z": Box(0, 1, (2,)),
}
KEYS = {"numbers": ["hidden"], "nested": ["a/hidden", "hidden"], "images": ["hidden", "a_hidden"]}
SPACES = {"numbers": Dict(NUMBERS), "nested": Dict(NESTED), "images": Dict(IMAGES)}
RNN = {"use_rnn": True, "rnn_size": 5}
KINDS = {"plain": {}, "rnn": RNN, "sac": {"algo": "sac"}}


def made(space: str, **settings: Any) -> tuple[Any, Any, TrainConfig]:
    spec = spec_of_spaces(SPACES[space], Box(-1, 1, (2,)), "X", None)
    config = TrainConfig(critic_only_keys=KEYS[space], encoder_mlp_layers=[16], **settings)
    return make_acting_model(spec, config), spec, config


def rows_of(spec: Any, space: str, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """Random observations as rows, the same rows with other hidden parts, and the observations."""
    SPACES[space].seed(0)
    observations = [SPACES[space].sample() for _ in range(2 * num_rows)]
    whole, hidden = ObservationCodec(spec.observation), KEYS[space]
    seen_only = ObservationCodec(spec.observation, unread=hidden)
    rows = np.zeros((2, num_rows, spec.observation.row_size), spec.observation.row_dtype)
    for idx in range(num_rows):
        whole.write(observations[idx], rows[0, idx])
        whole.write(observations[num_rows + idx], rows[1, idx])
        seen_only.write(observations[idx], rows[1, idx])
    assert (rows[0] != rows[1]).any(axis=1).all()
    return torch.from_numpy(rows[0]), torch.from_numpy(rows[1]), observations[:num_rows]


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
def test_a_policy_and_its_exported_file_do_without_the_hidden_parts(space: str, kind: str, tmp_path: Path) -> None:
    model, spec, config = made(space, **KINDS[kind])
    policy = Policy(model, spec, config)
    _, _, observations = rows_of(spec, space, 1)
    expected = policy.act(observations[0], deterministic=True)
    policy.reset()
    seen = {key: value for key, value in observations[0].items() if key not in KEYS[space]}
    if space == "nested":
        seen["a"] = {"seen": seen["a"]["seen"]}
    np.testing.assert_array_equal(policy.act(seen, deterministic=True), expected)
    policy.export(tmp_path / "policy.pt2", "torch_export")
    arguments = [seen["a"]["seen"] if space == "nested" else seen[key] for key in seen]
    tensors = [torch.from_numpy(np.array(each))[None] for each in arguments]
    tensors = [each if each.dtype in (torch.uint8, torch.int64) else each.float() for each in tensors]
    state = [torch.zeros(1, model.rnn_state_size)] if kind == "rnn" else []
    loaded = torch.export.load(tmp_path / "policy.pt2").module()
    action = loaded(*tensors, torch.zeros(1, 2), *state)[1]
    np.testing.assert_allclose(action[0].numpy(), expected, atol=1e-5)


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
