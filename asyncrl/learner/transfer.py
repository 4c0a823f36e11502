"""Begins a run with the policy of a checkpoint whose networks differ, or that has no more than its policy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import variance_of
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.state import LearnerState


def names_that_fit(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors of `own` that `saved` has with the same shape."""
    return [name for name, tensor in own.items() if name in saved and saved[name].shape == tensor.shape]


def begin_with(learner: OnPolicyLearner | ReplayLearner, saved: LearnerState) -> None:
    """Loads a state into a new learner; of one that is not whole, the policy's tensors and statistics that fit.

    Running moments continue from the statistics. Optimizers and critics that are not part of the policy keep their
    initial state, and target networks of the policy begin as its copies.
    """
    if saved.is_whole:
        learner.load_state_dict(saved)
        return
    own = learner.state_dict()
    model = {**own.model, **{name: saved.model[name] for name in names_that_fit(own.model, saved.model)}}
    parameters = [name for name, _ in learner.model.named_parameters()]
    before, after = (torch.cat([tensors[name].reshape(-1) for name in parameters]) for tensors in (own.model, model))
    # A learner from a replay also stores the parameters of the policy in one tensor, and so its target network.
    optimizer = {name: after if torch.equal(tensor, before) else tensor for name, tensor in own.optimizer.items()}
    scalars = {**own.scalars, **{name: saved.scalars[name] for name in ("policy_version", "learning_rate")}}
    if "statistics" in names_that_fit(own.model, saved.model):
        size = learner.model.observation_size
        for name, statistics in (("obs", model["statistics"][: 2 * size]), ("return", model["statistics"][2 * size :])):
            if f"{name}_mean" in optimizer:
                mean, std = statistics.double().chunk(2)
                optimizer[f"{name}_mean"] = mean
                optimizer[f"{name}_variance"] = variance_of(std)
                scalars[f"{name}_count"] = saved.scalars.get(f"{name}_count", saved.scalars["env_steps"])
    learner.load_state_dict(LearnerState(model, optimizer, scalars))
