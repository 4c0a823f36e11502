"""Updates of SAC and TD3 on sequences of rows, with recurrent policy and critics.

Policy and critics have encoders and recurrent cores of their own, as Ni et al. 2022, "Recurrent Model-Free RL Can Be a
Strong Baseline for Many POMDPs" (arXiv:2110.05038) recommend. All networks run through the same rows. The policy begins
with the state that the replay has stored, the critics with zeros, because no critic has acted; the burn-in rows bring
both up to date (Kapturowski et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithms import sac, td3
from asyncrl.config.errors import UsageError
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.sac import SacLearner, expected
from asyncrl.learner.sequence_sampler import Sequences
from asyncrl.learner.td3 import Td3Learner
from asyncrl.learner.update_runner import Figures
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor, TwinCritic

_NO_GRAPHS = "Updates of a recurrent policy from a replay run without --compile=cuda_graph."


class _Rows:
    """A batch of sequences row by row, steps first, as the networks read it.

    Attributes:
        obs: normalized observations of T + 1 rows.
        action, reward, discount: of the L = T - K rows that are trained, `[L * N, ...]`.
        num_sequences: N.
    """

    def __init__(self, learner: ReplayLearner, batch: Sequences) -> None:
        """Takes a batch on the learner's device."""
        rows = (batch.obs, batch.action, batch.reward, batch.discount, batch.weight)
        obs, self.action, self.reward, self.discount, weight = (each.transpose(0, 1).flatten(0, 1) for each in rows)
        self.obs = learner.model.inputs_of(obs)
        self.num_sequences, num_trained = batch.reward.shape
        self._begins, self._rnn_state = batch.begins.t(), batch.rnn_state.to(self.obs.floats)
        self._burn_in = len(self._begins) - 1 - num_trained
        self._share = weight / weight.sum().clamp(min=1.0)
        self._in_reduced_precision = learner.in_reduced_precision

    @property
    def trained_obs(self) -> Inputs:
        """Observations of the rows that are trained."""
        return self.obs.slice(self._burn_in * self.num_sequences, -self.num_sequences)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over samples of `values: [..., L * N]`."""
        return (values * self._share).sum(-1)

    def parameters(self, actor: SacActor) -> Tensor:
        """The policy's outputs `[(L + 1) * N, P]` in the rows that are trained, and after the last of them."""
        with self._in_reduced_precision():
            return actor.unroll(self.obs, self._rnn_state, self._begins, self._burn_in)

    def features(self, critic: TwinCritic) -> Tensor:
        """The critics' features `[(L + 1) * N, F]` in the same rows."""
        with self._in_reduced_precision():
            return critic.unroll(self.obs, self._begins, self._burn_in)

    def values(self, critic: TwinCritic, features: Tensor, action: Tensor) -> Tensor:
        """Values `[2, L * N, M]` of continuous actions `[L * N, C]` with each combination of choices."""
        with self._in_reduced_precision():
            return critic.combine(features, action).to(self.obs.floats)


class _SequenceLearner(ReplayLearner):
    """What both have in common: a sequence's rows are the transitions of a minibatch, and updates are no graphs."""

    critic: TwinCritic

    def __init__(self, *args: Any) -> None:
        """Takes the arguments of the learner of single steps; actor and critics are recurrent.

        Raises:
            UsageError: critics of a user have no core, or methods that nobody here calls.
        """
        super().__init__(*args)
        own = type(self.critic)
        if self.critic.core is None:
            raise UsageError(f"--use_rnn=True: the critics {own.__name__} have no recurrent core.")
        if own.values is not TwinCritic.values and own.combine is TwinCritic.combine:
            text = f"--use_rnn=True: the critics {own.__name__} override values, but unroll and combine are called."
            raise UsageError(text)
        if self._graphs is not None:  # the host reads where episodes end
            self._graphs, self.notice = None, _NO_GRAPHS


class RecurrentSacLearner(_SequenceLearner, SacLearner):
    """SAC on sequences."""

    def _inputs_of(self, batch: Any, trains_actor: bool) -> Sequence[Tensor]:
        """The batch, and noise for actions at next observations, and at the first ones if the policy is trained."""
        own, num_rows = self.model.statistics, (2 if trains_actor else 1) * batch.reward.numel()
        shape = (num_rows, self._parts.num_continuous)
        return *batch, torch.randn(shape, generator=self._generator, dtype=own.dtype, device=own.device)

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        rows, noise = _Rows(self, Sequences(*inputs[:-1])), inputs[-1]
        size, after, ent_coef = len(rows.reward), rows.num_sequences, self._log_ent_coef.exp()[0]
        target_critic = self.target_critic
        assert target_critic is not None and self._target is not None
        with torch.set_grad_enabled(trains_actor):
            parameters = rows.parameters(self.model)
        # Target: the expected return after each row, by the smaller of two target critics.
        action, log_prob, log_probs = self._sample(parameters.detach()[after:], noise[-size:])
        next_values = rows.values(target_critic, rows.features(target_critic)[after:], action)
        next_value = self._soft_value(next_values, log_probs, log_prob, ent_coef)
        target = sac.soft_target(rows.reward, rows.discount, next_value)
        # Critics and target critics.
        with torch.enable_grad():
            features = rows.features(self.critic)[:-after]
            outputs = rows.values(self.critic, features, self._parts.continuous_of(rows.action))
            values = self._parts.chosen_values(outputs, rows.action)
            loss = 0.5 * rows.mean((values - target).square()).sum()
            self._critic.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        figures = torch.stack((loss.detach(), rows.mean(values.detach()).mean(), rows.obs.floats.sum()))
        critic_figures = self._critic.step(self._rate, figures)
        self._target.follow(self._critic, self._config.tau)
        if not trains_actor:
            return critic_figures, None
        # Policy and entropy coefficient.
        features = rows.features(self.critic)[:-after]
        with torch.enable_grad():
            action, log_prob, log_probs = self._sample(parameters[:-after], noise[:size])
            values = rows.values(self.critic, features, action)
            loss = -rows.mean(self._soft_value(values, log_probs, log_prob, ent_coef))
            self._actor.flat.zero_grad()
            loss.backward(inputs=[each for each in self.model.parameters() if each.requires_grad])  # type: ignore[no-untyped-call]
        entropy = -rows.mean((log_prob + expected(log_probs, log_probs)).detach())
        return critic_figures, self._step_actor(loss.detach(), entropy, ent_coef, rows.trained_obs, rows.mean)


class RecurrentTd3Learner(_SequenceLearner, Td3Learner):
    """TD3 on sequences."""

    def _update_by_autograd(self, inputs: Sequence[Tensor], trains_actor: bool) -> Figures:
        rows, noise = _Rows(self, Sequences(*inputs[:-1])), inputs[-1]
        after, critic, target_critic = rows.num_sequences, self.critic, self.target_critic
        next_action = self._smoothed(rows.parameters(self.target_actor)[after:].tanh(), noise)
        next_values = rows.values(target_critic, rows.features(target_critic)[after:], next_action).squeeze(-1)
        target = td3.clipped_double_target(rows.reward, rows.discount, next_values)
        with torch.enable_grad():
            values = rows.values(critic, rows.features(critic)[:-after], rows.action.tanh()).squeeze(-1)
            loss = 0.5 * rows.mean((values - target).square()).sum()
            self._critic.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        critic_figures = self._step_critic(loss.detach(), rows.mean(values.detach()), rows.obs.floats.sum())
        if not trains_actor:
            return critic_figures, None
        features = rows.features(critic)[:-after]
        with torch.enable_grad():
            action = rows.parameters(self.model)[:-after].tanh()
            loss = -rows.mean(rows.values(critic, features, action)[0, :, 0])
            self._actor.flat.zero_grad()
            loss.backward(inputs=[each for each in self.model.parameters() if each.requires_grad])  # type: ignore[no-untyped-call]
        return critic_figures, self._step_actor(loss.detach())
