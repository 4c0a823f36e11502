"""A new run begins with what fits of a checkpoint with other networks, or of a policy that an evaluation has saved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from layouts import vector_observation
from transitions import BOX, CHOICE, CPU, draw

from asyncrl.config.algorithms import imported
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.state import LearnerState
from asyncrl.learner.transfer import begin_with
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.factory import make_acting_model

ALGORITHMS = ("ppo", "sac", "td3", "dqn")


def spec_of(algo: str, size: int = 3) -> EnvSpec:
    return dataclasses.replace(CHOICE if algo == "dqn" else BOX, observation=vector_observation(size))


def make(algo: str, spec: EnvSpec | None = None, **settings: Any) -> OnPolicyLearner | ReplayLearner:
    usual = {"encoder_mlp_layers": [16, 8], "normalize_input": True, "precision": "float32"}
    config, spec = TrainConfig(algo=algo, **{**usual, **settings}), spec or spec_of(algo)
    model = make_acting_model(spec, config)
    if isinstance(model, ActorCritic):
        return OnPolicyLearner(model, config, CPU, ParameterStore())
    learner: ReplayLearner = imported(config.algorithm.make_learner)(model, config, spec, CPU, ParameterStore())
    return learner


def trained(algo: str, seed: int = 1) -> LearnerState:
    """The state of a learner whose tensors are all its own, with statistics of observations."""
    learner = make(algo, seed=seed)
    with torch.no_grad():
        learner.model.statistics.copy_(torch.arange(1.0, 1.0 + len(learner.model.statistics)))
    learner.policy_version = 77
    state = learner.state_dict()
    return LearnerState(state.model, state.optimizer, {**state.scalars, "env_steps": 5000})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_policy_that_an_evaluation_saved_is_taken_with_its_statistics(algo: str) -> None:
    saved, learner = trained(algo), make(algo, seed=2, learning_rate=0.5)
    initial = learner.state_dict()
    scalars: dict[str, Any] = {"policy_version": 77, "env_steps": 5000, "learning_rate": 0.5}
    begin_with(learner, LearnerState(saved.model, {}, scalars, is_whole=False))
    state = learner.state_dict()
    assert state.model.keys() == saved.model.keys()
    assert all(torch.equal(tensor, saved.model[name]) for name, tensor in state.model.items())
    assert (learner.policy_version, state.scalars["obs_count"], state.scalars["learning_rate"]) == (77, 5000, 0.5)
    mean, std = learner.model.obs_mean.double(), learner.model.obs_std.double()
    assert torch.equal(state.optimizer["obs_mean"], mean)
    assert torch.allclose((state.optimizer["obs_variance"] + 1e-5).sqrt(), std)
    if algo == "ppo":
        assert state.scalars["return_count"] == 5000
        assert state.optimizer["return_mean"].item() == saved.model["statistics"][-2].item()
    parameters = [name for name, _ in learner.model.named_parameters()]
    flat = torch.cat([saved.model[name].reshape(-1) for name in parameters])
    copies = [name for name, each in state.optimizer.items() if each.shape == flat.shape and "exp_avg" not in name]
    assert len(copies) == {"ppo": 0, "sac": 1, "td3": 2, "dqn": 2}[algo]
    assert all(torch.equal(state.optimizer[name], flat) for name in copies), "target networks follow the policy"
    for name in ("critic.value.0", "target_critic", "critic.exp_avg.0"):
        assert name not in state.optimizer or torch.equal(state.optimizer[name], initial.optimizer[name])
    if isinstance(learner, ReplayLearner):  # layers for products were copied, too
        assert learner.train(draw(CHOICE if algo == "dqn" else BOX, 1)) is not None


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_of_a_policy_for_other_observations_the_tensors_that_fit_are_taken(algo: str) -> None:
    saved, learner = trained(algo), make(algo, spec_of(algo, size=4), seed=2)
    initial = learner.state_dict()
    begin_with(learner, LearnerState(saved.model, saved.optimizer, saved.scalars, is_whole=False))
    state = learner.state_dict()
    taken = {
        name for name, tensor in state.model.items() if name in saved.model and tensor.shape == saved.model[name].shape
    }
    for name, tensor in state.model.items():
        assert torch.equal(tensor, (saved.model if name in taken else initial.model)[name]), name
    assert 0 < len(taken) < len(state.model)
    assert "statistics" not in taken
    assert state.scalars["obs_count"] == 0
    for name, tensor in state.optimizer.items():
        if "exp_avg" in name or name.startswith(("critic", "target_critic")):
            assert torch.equal(tensor, initial.optimizer[name]), name


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_whole_state_is_loaded_with_all_that_it_has(algo: str) -> None:
    saved, learner = trained(algo), make(algo, seed=2)
    begin_with(learner, saved)
    state = learner.state_dict()
    for kind in ("model", "optimizer"):
        assert all(torch.equal(tensor, getattr(saved, kind)[name]) for name, tensor in getattr(state, kind).items())
