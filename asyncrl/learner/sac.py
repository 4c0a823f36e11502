"""Owns SAC's networks and draws the noise of its updates; `asyncrl.algorithms.sac` has the update."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import CRITIC_METRICS, Transitions
from asyncrl.algorithms.sac import ACTOR_METRICS, Sac
from asyncrl.config.critic_kinds import PLAIN, critic_kind
from asyncrl.config.hooks import load
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.fast.layers import perceptrons_of
from asyncrl.learner.fast.sac_passes import SacPasses
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.state import LearnerState
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.observers.reports import SacMetrics

ACTOR, CRITIC, TARGET_CRITIC, LOG_ENT_COEF = "actor", "critic", "target_critic", "log_ent_coef"
"""Names of the trained tensors in a `ParameterStore`."""


class SacLearner(ReplayLearner):
    """Owns actor, critics, target critics and the entropy coefficient.

    Attributes:
        algorithm_type: makes the update of plain critics; a subclass may have another one.
        algorithm: the update.
        critic: the critics.
        target_critic: the target critics; None without any (`CriticKind.has_target_critics`).
    """

    algorithm_type: type[Sac] = Sac

    def __init__(
        self,
        actor: SacActor,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the actor and new critics, on `device`; `storage` allocates their memory."""
        super().__init__(actor, config, device, storage := storage or ParameterStore())
        self.critic = actor.make_critic(spec, config).to(actor.statistics)
        kind = critic_kind(config)
        self.target_critic = copy.deepcopy(self.critic) if kind.has_target_critics else None
        initial = kind.initial_ent_coef if config.initial_ent_coef == "auto" else config.initial_ent_coef
        ent_coef = initial if config.ent_coef == "auto" else config.ent_coef
        log_ent_coef = torch.full((1,), math.log(ent_coef), dtype=actor.statistics.dtype, device=device)
        log_ent_coef = storage.allocate(LOG_ENT_COEF, log_ent_coef)
        gradient = torch.zeros_like(log_ent_coef)
        # Hand-written passes through perceptrons are faster than autograd and compute the same.
        has_plain_critics = isinstance(self.critic, TwinCritic) and kind == PLAIN and config.num_critics == 2
        has_passes = actor.has_passes and has_plain_critics
        perceptrons = perceptrons_of(actor.mlp, self.critic.mlp) if has_passes else None
        actor_mlp, critic_mlp = perceptrons or (None, None)
        adapted = {LOG_ENT_COEF: (log_ent_coef, gradient)} if config.ent_coef == "auto" else {}
        self._actor = self._make_trained(ACTOR, self.model, actor_mlp, ACTOR_METRICS, others=adapted)
        self._critic = self._make_trained(CRITIC, self.critic, critic_mlp, CRITIC_METRICS)
        targets = []
        if self.target_critic is not None:
            targets.append(self._make_target(TARGET_CRITIC, self.target_critic, critic_mlp, self._critic))
        self._steps_type = load(kind.steps)
        make_algorithm = self.algorithm_type if kind.update is None else load(kind.update)
        self.algorithm: Sac = make_algorithm(
            config,
            self.model,
            self.critic,
            self.target_critic,
            step_actor=self._actor.minimize,
            step_critic=self._critic.minimize,
            move_targets=self._move_targets,
            log_ent_coef=log_ent_coef,
            ent_coef_gradient=gradient,
        )
        passes = None
        if perceptrons is not None:
            passes = SacPasses(self.algorithm, self._actor, self._critic, targets[0], self._dtype).update
        self._set_up(SacMetrics, [self._critic, self._actor], targets, {LOG_ENT_COEF: log_ent_coef}, passes)

    def _settings_of_its_own(self, state: LearnerState) -> set[str]:
        """Tensors of the entropy coefficient that are not restored: `ent_coef` decides them, or they were not saved."""
        adapted = {f"actor.{kind}.1" for kind in ("value", "exp_avg", "exp_avg_sq", "step")}
        if self._config.ent_coef != "auto":
            return {"log_ent_coef", *adapted}
        return set() if adapted <= state.optimizer.keys() else adapted

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        """The batch, and noise for actions at all observations, the first ones only if the policy is trained."""
        num_rows = (self._config.n_step + trains_actor) * batch.reward.numel()
        noise = self._noise((num_rows, self.algorithm.parts.num_continuous))
        if self._config.num_critics == 2:
            return *batch, noise
        pair = torch.randperm(self._config.num_critics, generator=self._generator, device=noise.device)[:2]
        return *batch, noise, pair

    def _update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        num_fields = len(Transitions._fields)
        batch, (noise, *pair) = Transitions(*inputs[:num_fields]), inputs[num_fields:]
        steps = self._steps_type(batch, batch.later_obs, self.model, self.in_reduced_precision, *pair)
        return self.algorithm.update(steps, noise, trains_actor)
