"""Policies of games of bits, as checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from asyncrl.config.schema import TrainConfig
from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.checkpoint import Checkpoint


def checkpoint_of(folder: Path, env: str, names_the_bit: bool, kind: int = 0, **settings: Any) -> Path:
    """A policy of a game of bits that always names its bit, or always the other one, for one kind of agents."""
    config = TrainConfig(env=env, encoder_mlp_layers=[], normalize_input=False, **settings)
    spec = read_spec(make_env(env), env).kinds[kind]
    model = ActorCritic(spec, config)
    sign = 50.0 if names_the_bit else -50.0
    with torch.no_grad():
        model.policy_head.weight.zero_()
        model.policy_head.weight[[0, -1], -1] = torch.tensor([-sign, sign])
        model.policy_head.bias.zero_()
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    return checkpoints.save(folder, Checkpoint(model.state_dict(), {}, state), 100, keep=2)
