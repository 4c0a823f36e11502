"""SAC's updates on batches of transitions: no processes, no shared memory.

One update computes targets with the current policy, then trains the critics, moves the target critics, and at every
`policy_delay`-th update trains the policy and the entropy coefficient (Haarnoja et al. 2018, algorithm 1).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncrl.algorithms import sac
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import ParameterStore
from asyncrl.learner.replay_learner import (
    CRITIC_FIGURES,
    ReplayLearner,
    TargetNetwork,
    TrainedNetwork,
    TrainedPart,
    perceptron_of,
)
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.state import LearnerState
from asyncrl.learner.update_runner import Figures
from asyncrl.models.encoders import Inputs
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.sac import SacActor, TwinCritic
from asyncrl.monitoring.reports import SacMetrics

_ACTOR_FIGURES = ("actor_loss", "ent_coef", "ent_coef_loss", "entropy", "grad_norm_actor")

ACTOR, CRITIC, TARGET_CRITIC, LOG_ENT_COEF = "actor", "critic", "target_critic", "log_ent_coef"
"""Names of the trained tensors in a `ParameterStore`."""


class SacLearner(ReplayLearner):
    """Owns actor, critics, target critics and the entropy coefficient.

    Attributes:
        critic: the critics.
        target_critic: the target critics; None with `--use_target_critics=False`.
    """

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
        self.target_critic = copy.deepcopy(self.critic) if config.use_target_critics else None
        self._support: Tensor | None = getattr(self.critic, "support", None)
        self._parts = actor.parts.to(device)
        self._num_choices = torch.tensor(self._parts.sizes, device=device)
        self._target_of_dims = config.target_entropy_per_dim * self._parts.num_continuous
        self._target_entropy: float | None = None  # with masks it depends on the observations
        if config.target_entropy != "auto":
            self._target_entropy = config.target_entropy
        elif not actor.layout.num_mask:
            self._target_entropy = self._target_of_dims + 0.5 * self._parts.max_entropy
        initial = config.initial_ent_coef
        if initial == "auto":
            initial = 1.0 if config.value_bins is None else 0.01
        ent_coef = initial if config.ent_coef == "auto" else config.ent_coef
        log_ent_coef = torch.full((1,), math.log(ent_coef), dtype=actor.statistics.dtype, device=device)
        self._log_ent_coef = storage.allocate(LOG_ENT_COEF, log_ent_coef)
        self._ent_coef_gradient = torch.zeros_like(self._log_ent_coef)
        adapted = {LOG_ENT_COEF: (self._log_ent_coef, self._ent_coef_gradient)} if config.ent_coef == "auto" else {}
        # Hand-written passes through perceptrons are faster than autograd and compute the same.
        actor_mlp, critic_mlp = None, None
        has_plain_critics = isinstance(self.critic, TwinCritic) and self._support is None
        if actor.has_passes and has_plain_critics and self.target_critic is not None and config.num_critics == 2:
            actor_mlp, critic_mlp = perceptron_of(actor.mlp), perceptron_of(self.critic.mlp)
        has_passes = actor_mlp is not None and critic_mlp is not None
        self._actor = TrainedNetwork(ACTOR, self.model, actor_mlp, config, self._dtype, storage, adapted)
        self._critic = TrainedNetwork(CRITIC, self.critic, critic_mlp, config, self._dtype, storage)
        self._target: TargetNetwork | None = None
        if self.target_critic is not None:
            self._target = TargetNetwork(TARGET_CRITIC, self.target_critic, critic_mlp, self._dtype, storage)
        self._actor_pass, self._critic_pass = MlpPass(config.nonlinearity), MlpPass(config.nonlinearity)
        self._inputs = torch.empty(0)
        self._set_up(
            self._update_by_passes if has_passes else self._update_by_autograd,
            SacMetrics,
            acting=self._actor,
            trained={
                CRITIC: TrainedPart(self._critic, CRITIC_FIGURES, "critics' weights"),
                ACTOR: TrainedPart(self._actor, _ACTOR_FIGURES, "policy's weights"),
            },
            targets={} if self._target is None else {TARGET_CRITIC: self._target},
            others={LOG_ENT_COEF: self._log_ent_coef},
        )

    def _settings_of_its_own(self, state: LearnerState) -> set[str]:
        """Tensors of the entropy coefficient that are not restored: `ent_coef` decides them, or they were not saved."""
        adapted = {f"actor.{kind}.1" for kind in ("value", "exp_avg", "exp_avg_sq", "step")}
        if self._config.ent_coef != "auto":
            return {"log_ent_coef", *adapted}
        return set() if adapted <= state.optimizer.keys() else adapted

    def _inputs_of(self, batch: Transitions, trains_actor: bool) -> Sequence[Tensor]:
        """The batch, and noise for actions at all observations, the first ones only if the policy is trained."""
        rows, num_between = batch.between_discount.shape
        shape = ((num_between + (2 if trains_actor else 1)) * rows, self._parts.num_continuous)
        own, num_critics = self.model.statistics, self._config.num_critics
        noise = torch.randn(shape, generator=self._generator, dtype=own.dtype, device=own.device)
        if num_critics == 2:
            return *batch, noise
        # Of more critics two give the target (REDQ, Chen et al. 2021, arXiv:2101.05982, algorithm 1).
        return *batch, noise, torch.randperm(num_critics, generator=self._generator, device=own.device)[:2]

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """One update of any networks; returns figures of the critics `[C]`, and `[A]` of the policy if trained."""
        num_fields = len(Transitions._fields)
        batch, (noise, *pair) = Transitions(*inputs[:num_fields]), inputs[num_fields:]
        size = len(batch.reward)
        ent_coef = self._log_ent_coef.exp()[0]
        obs = self.model.inputs_of(batch.obs)
        # Target: the expected return after the transition, by the smaller of two target critics.
        after = torch.cat((batch.between_obs.transpose(0, 1).flatten(0, 1), batch.next_obs))
        later = self.model.inputs_of(after)
        action, log_prob, log_probs = self._draw(later, noise[-len(after) :])
        last = Inputs(later.floats[-size:], None if later.pixels is None else later.pixels[-size:])
        neg_entropy = log_prob + expected(log_probs, log_probs)
        reward = self._reward_of(batch, neg_entropy, ent_coef)
        # Critics and target critics.
        with torch.enable_grad(), self._critic.normalizing_by_batch():
            outputs, next_outputs = self._outputs_of_critics(
                obs, self._parts.continuous_of(batch.action), last, action[-size:]
            )
            next_outputs = next_outputs[pair[0]] if pair else next_outputs
            if self._support is None:
                next_value = self._soft_value(next_outputs, log_probs[-size:], log_prob[-size:], ent_coef)
                values = self._parts.chosen_values(outputs, batch.action)
                target = sac.soft_target(reward, batch.discount, next_value)
                loss = 0.5 * (values - target).square().mean(1).sum()
            else:
                distribution = sac.next_distribution(next_outputs, self._support, log_probs[-size:])
                after_entropy = self._support - (ent_coef * neg_entropy[-size:]).unsqueeze(1)
                returns = sac.soft_target(reward.unsqueeze(1), batch.discount.unsqueeze(1), after_entropy)
                (chosen,) = self._parts.chosen(batch.action)
                bins = outputs[:, torch.arange(size, device=chosen.device), chosen]
                values = bins.detach().exp() @ self._support
                target = sac.project_distribution(distribution, returns, self._support)
                loss = sac.distribution_loss(bins, target)
            self._critic.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        # With bins the loss of an infinite return is finite.
        sum_of_inputs = obs.floats.sum() + later.floats.sum() + 0.0 * reward.sum()
        figures = torch.stack((loss.detach(), values.detach().mean(), sum_of_inputs))
        critic_figures = self._critic.step(self._rate, figures)
        if self._target is not None:
            self._target.follow(self._critic, self._config.tau)
        if not trains_actor:
            return critic_figures, None
        # Policy and entropy coefficient.
        with torch.enable_grad(), self._actor.normalizing_by_batch():
            action, log_prob, log_probs = self._draw(obs, noise[:size])
            values = self._outputs(self.critic.values, obs, action)
            values = values.mean(0, keepdim=True) if pair else values
            loss = -self._soft_value(values, log_probs, log_prob, ent_coef).mean()
            self._actor.flat.zero_grad()
            loss.backward(inputs=[each for each in self.model.parameters() if each.requires_grad])  # type: ignore[no-untyped-call]
        entropy = -(log_prob + expected(log_probs, log_probs)).detach().mean()
        return critic_figures, self._step_actor(loss.detach(), entropy, ent_coef, obs)

    def _draw(self, inputs: Inputs, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Continuous actions `[B, C]`, their log-probability `[B]`, log-probabilities of choices `[B, N]`."""
        with self.in_reduced_precision():
            parameters = self.model(*inputs)
        return self._sample(parameters, noise)

    def _sample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same from the policy's outputs `[B, P]`."""
        sample = sac.draw_squashed(self._parts.gaussian_of(parameters), noise)
        return sample.action, sample.log_prob, self._parts.log_probs_of(parameters)

    def _soft_value(self, values: Tensor, log_probs: Tensor, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
        return sac.soft_value_of_parts(values, log_probs, log_prob, ent_coef, self._parts.num_groups)

    def _outputs_of_critics(
        self, obs: Inputs, action: Tensor, next_obs: Inputs, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Values `[K, B, N]`, or log-probabilities of bins `[K, B, N, M]`, at both observations.

        The critics' at the first, with gradient, and those of the target critics at the next ones. Without target
        critics the critics take both as one batch, so that both have the same statistics (CrossQ, 1902.05605 v4).
        """
        critic, target, has_bins = self.critic, self.target_critic, self._support is not None
        compute = critic.log_probs if has_bins else critic.values
        if target is not None:
            next_outputs = self._outputs(target.log_probs if has_bins else target.values, next_obs, next_action)
            return self._outputs(compute, obs, action), next_outputs.detach()
        pixels = None
        if obs.pixels is not None and next_obs.pixels is not None:
            pixels = torch.cat((obs.pixels, next_obs.pixels))
        both = Inputs(torch.cat((obs.floats, next_obs.floats)), pixels)
        outputs = self._outputs(compute, both, torch.cat((action.to(next_action), next_action)))
        return outputs[:, : len(action)], outputs[:, len(action) :].detach()

    def _outputs(self, compute: Callable[[Inputs, Tensor], Tensor], inputs: Inputs, action: Tensor) -> Tensor:
        """What a critic's method makes of continuous actions, with all combinations of choices."""
        with self.in_reduced_precision():
            return compute(inputs, action)

    def _update_by_passes(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        """The same without autograd, for perceptrons and actions that are either continuous or one choice."""
        batch, noise = Transitions(*inputs[:-1]), inputs[-1]
        size, num_between = batch.between_discount.shape
        ent_coef = self._log_ent_coef.exp()[0]
        # All observations: the first ones, those between in the order of their steps, the next ones.
        shape = ((2 + num_between) * size, self.model.observation_size)
        if self._inputs.shape != shape:
            self._inputs = self.model.statistics.new_empty(shape)
        self._inputs[:size].copy_(batch.obs)
        self._inputs[size:-size].copy_(batch.between_obs.transpose(0, 1).flatten(0, 1))
        self._inputs[-size:].copy_(batch.next_obs)
        obs = self.model.normalize_obs(self._inputs, out=self._inputs).to(self._dtype)
        # The policy at the first observations is needed only for its own update.
        rows = obs if trains_actor else obs[size:]
        parameters = self.model.parameters_of(self._actor_pass.forward(self._actor.layers, rows)[0])
        if self.model.is_gaussian:
            return self._update_continuous(batch, obs, parameters, noise, ent_coef, trains_actor)
        return self._update_discrete(batch, obs, parameters, ent_coef, trains_actor)

    def _update_continuous(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, noise: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> Figures:
        size, num_obs = batch.reward.shape[0], self.model.observation_size
        sample = sac.draw_squashed(parameters, noise)
        inputs = torch.cat((obs[-size:], sample.action[-size:].to(obs.dtype)), dim=1)
        assert self._target is not None
        next_values = self._critic_pass.forward(self._target.layers, inputs).squeeze(-1)
        next_value = sac.soft_value(next_values, sample.log_prob[-size:], ent_coef)
        target = self._target_of(batch, next_value, sample.log_prob, ent_coef)
        inputs = torch.cat((obs[:size], batch.action.tanh().to(obs.dtype)), dim=1)
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = sac.critic_loss(values, target)
        critic_figures = self._train_critic(loss, loss.gradient.unsqueeze(-1), values)
        if not trains_actor:
            return critic_figures, None
        own = sac.SquashedSample(*(field[:size] for field in sample))
        inputs[:, num_obs:] = own.action
        values = self._critic_pass.forward(self._critic.layers, inputs).squeeze(-1)
        loss = sac.actor_loss(values, own.log_prob, ent_coef)
        columns = slice(num_obs, None)
        by_action = self._critic_pass.backward(self._critic.layers, loss.gradient.unsqueeze(-1), inputs=columns)
        assert by_action is not None
        gradient = sac.actor_gradient(own, by_action.sum(0, dtype=parameters.dtype), ent_coef)
        entropy = -own.log_prob.mean()
        outputs_gradient = self.model.outputs_gradient(parameters[:size], gradient).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, outputs_gradient, self._actor.gradients)
        return critic_figures, self._step_actor(loss.value, entropy, ent_coef, None)

    def _update_discrete(
        self, batch: Transitions, obs: Tensor, parameters: Tensor, ent_coef: Tensor, trains_actor: bool
    ) -> Figures:
        size, choice = batch.reward.shape[0], batch.action.expand(2, -1).unsqueeze(-1)
        assert self._target is not None
        next_values = self._critic_pass.forward(self._target.layers, obs[-size:])
        next_value = sac.soft_value_of_choices(next_values, parameters[-size:], ent_coef)
        target = self._target_of(batch, next_value, -self.model.distribution.entropy(parameters), ent_coef)
        all_values = self._critic_pass.forward(self._critic.layers, obs[:size])
        values = all_values.gather(-1, choice).squeeze(-1)
        loss = sac.critic_loss(values, target)
        gradient = torch.zeros_like(all_values).scatter_(-1, choice, loss.gradient.unsqueeze(-1))
        critic_figures = self._train_critic(loss, gradient, values)
        if not trains_actor:
            return critic_figures, None
        log_probs = parameters[:size]
        loss = sac.choices_actor_loss(log_probs, self._critic_pass.forward(self._critic.layers, obs[:size]), ent_coef)
        entropy = self.model.distribution.entropy(log_probs).mean()
        outputs_gradient = self.model.outputs_gradient(log_probs, loss.gradient).unsqueeze(0)
        self._actor_pass.backward(self._actor.layers, outputs_gradient, self._actor.gradients)
        return critic_figures, self._step_actor(loss.value, entropy, ent_coef, None)

    def _target_of(self, batch: Transitions, next_value: Tensor, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
        """The critics' targets; `log_prob` is of actions at the observations between and the next ones."""
        reward = self._reward_of(batch, log_prob, ent_coef) if batch.between_discount.numel() else batch.reward
        return sac.soft_target(reward, batch.discount, next_value)

    def _reward_of(self, batch: Transitions, log_prob: Tensor, ent_coef: Tensor) -> Tensor:
        """The rewards `[B]` of the steps, with the entropy terms between them."""
        size, num_between = batch.between_discount.shape
        reward = batch.reward
        if num_between > 0:
            between = log_prob[-(num_between + 1) * size : -size].view(num_between, size).t()
            reward = reward + sac.entropy_bonus(between, batch.between_discount, ent_coef)
        return reward

    def _train_critic(self, loss: sac.Loss, gradient: Tensor, values: Tensor) -> Tensor:
        """Steps the critics down `gradient` of their outputs, and moves the target critics; returns figures."""
        self._critic_pass.backward(self._critic.layers, gradient, self._critic.gradients)
        figures = self._critic.step(self._rate, torch.stack((loss.value, values.mean(), self._inputs.sum())))
        assert self._target is not None
        self._target.follow(self._critic, self._config.tau)
        return figures

    def _step_actor(
        self,
        loss: Tensor,
        entropy: Tensor,
        ent_coef: Tensor,
        obs: Inputs | None,
        mean: Callable[[Tensor], Tensor] = torch.mean,
    ) -> Tensor:
        """Takes a step of the policy down its gradient, and of the entropy coefficient; returns figures.

        Args:
            loss: of the policy.
            entropy: of the policy, a mean over samples.
            ent_coef: scalar alpha.
            obs: B observations with masks; None without masks.
            mean: of numbers `[B]`, over those that are samples.
        """
        ent_coef_loss = torch.zeros_like(loss)
        if self._config.ent_coef == "auto":
            target: Tensor | float | None = self._target_entropy
            if target is None:
                assert obs is not None
                target = self._target_of_dims + 0.5 * mean(self._max_entropy_of_choices(obs))
            adapting = sac.ent_coef_loss(self._log_ent_coef[0], entropy, target)
            self._ent_coef_gradient.copy_(adapting.gradient)
            ent_coef_loss = adapting.value
        return self._actor.step(self._rate, torch.stack((loss, ent_coef, ent_coef_loss, entropy)))

    def _max_entropy_of_choices(self, obs: Inputs) -> Tensor:
        """The largest possible entropy `[B]` of choices that masks allow."""
        allowed = obs.floats[:, self.model.layout.num_features :] != 0
        counts = torch.stack([part.sum(1) for part in torch.split(allowed, self._parts.sizes, dim=1)], 1)
        counts = torch.where(counts > 0, counts, self._num_choices)  # a mask that forbids all is ignored
        return counts.log().sum(1)


def expected(log_probs: Tensor, values: Tensor) -> Tensor:
    """Sum over groups `[B]` of the expectation of `values: [B, N]`."""
    return (log_probs.exp() * values).sum(-1)
