"""Owns DQN's networks; `asyncrl.algorithms.dqn` has the update.

The probability of choices at random is one of the published weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms import dqn
from asyncrl.algorithms.off_policy import Steps, Transitions
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.fast.dqn_passes import DqnPasses
from asyncrl.learner.fast.layers import perceptrons_of
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.models.dqn import QNetwork
from asyncrl.observers.reports import DqnMetrics, UpdateMetrics

_MODEL, _TARGET = "model", "target"


class DqnLearner(ReplayLearner):
    """Owns the network and its target network; `algorithm` is the update."""

    model: QNetwork
    auto_is_float32 = True

    def __init__(
        self,
        model: QNetwork,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the model, on `device`; `storage` allocates their memory."""
        super().__init__(model, config, device, storage or ParameterStore())
        self.target_model = copy.deepcopy(self.model)
        # Hand-written passes through a perceptron are faster than autograd and compute the same.
        has_passes = self.model.encoder is None and config.precision != "bf16"
        perceptrons = perceptrons_of(self.model.mlp) if has_passes else None
        (mlp,) = perceptrons or (None,)
        self._network = self._make_trained(_MODEL, self.model, mlp, dqn.STEP_METRICS)
        self._target = self._make_target(_TARGET, self.target_model, mlp, self._network)
        self.algorithm = dqn.Dqn(config, self.model, self.target_model, self._network.minimize, self._target.follow)
        passes = None if mlp is None else DqnPasses(self.algorithm, self._network, self._target).update
        self._set_up(DqnMetrics, [self._network], [self._target], passes=passes)

    def train(self, batches: Sequence[Transitions], env_steps_before: int = 0) -> UpdateMetrics | None:
        """See `ReplayLearner.train`; also sets the probability of a choice at random."""
        self.set_exploration(env_steps_before)
        metrics = super().train(batches, env_steps_before)
        self.set_exploration(env_steps_before)  # weight decay changes all parameters
        return metrics

    def set_exploration(self, env_steps: int) -> None:
        """See `ReplayLearner.set_exploration`: the probability of a choice at random."""
        epsilon = self._reported["exploration_rate"] = dqn.exploration_rate(self._config, env_steps)
        self.model.epsilon.fill_(epsilon)

    def _update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, ...]:
        batch = Transitions(*inputs)
        return self.algorithm.update(Steps(batch, batch.next_obs, self.model, self.in_reduced_precision))
