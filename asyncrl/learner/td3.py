"""Owns TD3's networks and draws the noise of its updates; `asyncrl.algorithms.td3` has the update."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import CRITIC_METRICS, Steps, Transitions
from asyncrl.algorithms.td3 import ACTOR_METRICS, Td3
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.fast.layers import perceptrons_of
from asyncrl.learner.fast.td3_passes import Td3Passes
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.models.td3 import DeterministicActor
from asyncrl.observers.reports import Td3Metrics

_ACTOR, _CRITIC, _TARGET_ACTOR, _TARGET_CRITIC = "actor", "critic", "target_actor", "target_critic"


class Td3Learner(ReplayLearner):
    """Owns actor and critics, and a target network of each.

    Attributes:
        algorithm: the update.
        critic: the twin critics.
        target_actor, target_critic: the target networks.
    """

    model: DeterministicActor

    def __init__(
        self,
        actor: DeterministicActor,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the actor and new critics, on `device`; `storage` allocates their memory."""
        super().__init__(actor, config, device, storage or ParameterStore())
        self.critic = actor.make_critic(spec, config).to(actor.statistics)
        self.target_actor, self.target_critic = copy.deepcopy(self.model), copy.deepcopy(self.critic)
        # Hand-written passes through perceptrons are faster than autograd and compute the same.
        perceptrons = perceptrons_of(actor.mlp, self.critic.mlp) if actor.has_passes else None
        actor_mlp, critic_mlp = perceptrons or (None, None)
        self._actor = self._make_trained(_ACTOR, self.model, actor_mlp, ACTOR_METRICS)
        self._critic = self._make_trained(_CRITIC, self.critic, critic_mlp, CRITIC_METRICS)
        self._target_actor = self._make_target(_TARGET_ACTOR, self.target_actor, actor_mlp, self._actor)
        self._target_critic = self._make_target(_TARGET_CRITIC, self.target_critic, critic_mlp, self._critic)
        self.algorithm = Td3(
            config,
            self.model,
            self.critic,
            self.target_actor,
            self.target_critic,
            step_actor=self._actor.minimize,
            step_critic=self._critic.minimize,
            move_targets=self._move_targets,
        )
        targets, passes = (self._target_actor, self._target_critic), None
        if perceptrons is not None:
            passes = Td3Passes(self.algorithm, self._actor, self._critic, *targets, self._dtype).update
        self._set_up(Td3Metrics, [self._critic, self._actor], targets, passes=passes)

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        return *batch, self._noise((batch.reward.numel(), self.model.distribution.num_actions))

    def _update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        batch = Transitions(*inputs[:-1])
        steps = Steps(batch, batch.next_obs, self.model, self.in_reduced_precision)
        return self.algorithm.update(steps, inputs[-1], trains_actor)
