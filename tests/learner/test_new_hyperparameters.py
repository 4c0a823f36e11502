"""A learner that takes new hyperparameters trains from then on as one that has had them from the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from critics import with_values
from datasets import BOX, CPU, MASKED, Actor, train_on
from transitions import draw

from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.state import LearnerState
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.sac import SacActor

OF_PPO = {
    "learning_rate": 1e-2,
    "gamma": 0.5,
    "gae_lambda": 0.25,
    "ppo_clip_ratio": 0.01,
    "value_loss_coeff": 2.0,
    "entropy_loss_coeff": 0.1,
    "kl_loss_coeff": 0.3,
    "max_grad_norm": 0.001,
    "ppo_clip_value": 0.001,
}
OF_SAC = {"learning_rate": 1e-2, "tau": 0.5, "max_grad_norm": 0.001}


def tensors(state: LearnerState) -> list[torch.Tensor]:
    return [*state.model.values(), *state.optimizer.values()]


def are_same(first: LearnerState, second: LearnerState) -> bool:
    pairs = zip(tensors(first), tensors(second), strict=True)
    return first.scalars == second.scalars and all(torch.equal(one, other) for one, other in pairs)


def train_ppo(spec: EnvSpec, new: dict[str, Any], old: dict[str, Any]) -> LearnerState:
    small = {"batch_size": 64, "num_batches_per_epoch": 2, "num_epochs": 2, "encoder_mlp_layers": [16]}
    config = TrainConfig(**small, **old)
    learner = OnPolicyLearner(with_values(ActorCritic(spec, config)), config, CPU)
    actor = Actor(spec, config)
    dataset = actor.collect(actor.receive(learner), lambda obs, action: obs[..., 0])
    learner.set_hyperparameters(Hyperparameters(**new))
    train_on(learner, dataset)
    return learner.state_dict()


@pytest.mark.parametrize("spec", [BOX, MASKED], ids=["written out", "by autograd"])
@pytest.mark.parametrize("name", OF_PPO)
def test_ppo_takes_each_of_them(spec: EnvSpec, name: str) -> None:
    new = {name: OF_PPO[name]}
    taken, plain = train_ppo(spec, new, {}), train_ppo(spec, {}, {})
    assert are_same(taken, train_ppo(spec, {}, new))
    assert not are_same(taken, plain)


def train_sac(new: dict[str, Any], old: dict[str, Any]) -> LearnerState:
    config = TrainConfig(algo="sac", encoder_mlp_layers=[16], normalize_input=False, precision="float32", **old)
    learner = SacLearner(SacActor(BOX, config), config, BOX, CPU)
    learner.set_hyperparameters(Hyperparameters(**new))
    learner.train(draw(BOX, 3), 0)
    return learner.state_dict()


@pytest.mark.parametrize("name", OF_SAC)
def test_sac_takes_each_of_them(name: str) -> None:
    new = {name: OF_SAC[name]}
    taken, plain = train_sac(new, {}), train_sac({}, {})
    assert are_same(taken, train_sac({}, new))
    assert not are_same(taken, plain)
