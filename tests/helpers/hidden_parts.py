"""Policies, and observations with parts that only the critic sees (`critic_only_keys`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.observations import ObservationCodec
from asyncrl.envs.spaces import spec_of_spaces
from asyncrl.models.factory import make_acting_model

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


def seen_of(space: str, observation: dict[str, Any]) -> dict[str, Any]:
    """The observation without its hidden parts."""
    seen = {key: value for key, value in observation.items() if key not in KEYS[space]}
    if space == "nested":
        seen["a"] = {"seen": seen["a"]["seen"]}
    return seen
