"""SAC and TD3 on sequences of rows, with recurrent policy and critics; the updates are those of single steps.

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

from asyncrl.algorithms.off_policy import Steps
from asyncrl.config.errors import UsageError
from asyncrl.contrib.recurrent_replay.sampler import Sequences
from asyncrl.learner.replay_learner import ReplayLearner
from asyncrl.learner.sac import SacLearner
from asyncrl.learner.td3 import Td3Learner
from asyncrl.learner.update_runner import UpdateRunner
from asyncrl.models.sac import SacActor, TwinCritic

_NO_GRAPHS = "Updates of a recurrent policy from a replay run without --compile=cuda_graph."


class SequenceSteps(Steps):
    """The rows of N sequences that are trained, as B = L * N samples, steps first; some have the weight 0.

    Attributes:
        obs: normalized observations of the rows.
        later: those after them.
    """

    def __init__(self, batch: Sequences, learner: ReplayLearner, trains_actor: bool) -> None:
        """Takes a batch on the learner's device."""
        rows = (batch.obs, batch.action, batch.reward, batch.discount, batch.weight)
        obs, self.action, self.reward, self.discount, self.weight = (
            each.transpose(0, 1).flatten(0, 1) for each in rows
        )
        self.between_discount = self.reward.new_empty((len(self.reward), 0))
        self._rows = learner.model.inputs_of(obs)  # of the burn-in, too, and of the last row's next observation
        self._num_sequences, num_trained = batch.reward.shape
        self._begins, self._rnn_state = batch.begins.t(), batch.rnn_state.to(self._rows.floats)
        self._burn_in = len(self._begins) - 1 - num_trained
        self.obs = self._rows.slice(self._burn_in * self._num_sequences, -self._num_sequences)
        self.later = self._rows.slice((self._burn_in + 1) * self._num_sequences)
        self._share = self.weight / self.weight.sum().clamp(min=1.0)
        self.precision = learner.in_reduced_precision
        self._trains_actor = trains_actor
        self._outputs: dict[SacActor, Tensor] = {}

    def policy(self, actor: SacActor) -> Tensor:
        return self._policy_outputs(actor)[: -self._num_sequences]

    def later_policy(self, actor: SacActor) -> Tensor:
        return self._policy_outputs(actor).detach()[self._num_sequences :]

    def critic_outputs(
        self, critic: TwinCritic, target: TwinCritic | None, action: Tensor, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert target is not None
        with torch.no_grad():
            next_values = self._values(target, self._features(target)[self._num_sequences :], next_action)
        return self._values(critic, self._features(critic)[: -self._num_sequences], action), next_values

    def policy_values(self, critic: TwinCritic, action: Tensor) -> Tensor:
        with torch.no_grad():
            features = self._features(critic)[: -self._num_sequences]
        return self._values(critic, features, action)

    def mean(self, values: Tensor) -> Tensor:
        return (values * self._share).sum(-1)

    def critic_figures(self, values: Tensor, reward: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.mean(values.detach()).mean(), self._rows.floats.sum()

    def _policy_outputs(self, actor: SacActor) -> Tensor:
        """The outputs `[(L + 1) * N, P]` in the rows that are trained, and after the last of them; of one pass."""
        if actor not in self._outputs:
            with torch.set_grad_enabled(self._trains_actor), self.precision():
                self._outputs[actor] = actor.unroll(self._rows, self._rnn_state, self._begins, self._burn_in)
        return self._outputs[actor]

    def _features(self, critic: TwinCritic) -> Tensor:
        """The critics' features `[(L + 1) * N, F]` in the same rows."""
        with self.precision():
            return critic.unroll(self._rows, self._begins, self._burn_in)

    def _values(self, critic: TwinCritic, features: Tensor, action: Tensor) -> Tensor:
        """Values `[K, L * N, M]` of continuous actions `[L * N, C]` with each combination of choices."""
        with self.precision():
            return critic.combine(features, action).to(self._rows.floats)


class _SequenceLearner(ReplayLearner):
    """Trains on sequences: their rows are the transitions of a minibatch, and updates run without graphs."""

    algorithm: Any
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
        if isinstance(self._step, UpdateRunner):  # the host reads where episodes end
            self._step, self.notice = self._update, _NO_GRAPHS

    def _update(self, inputs: Sequence[Tensor], trains_actor: bool) -> tuple[Tensor, Tensor | None]:
        steps = SequenceSteps(Sequences(*inputs[:-1]), self, trains_actor)
        metrics: tuple[Tensor, Tensor | None] = self.algorithm.update(steps, inputs[-1], trains_actor)
        return metrics


class RecurrentSacLearner(_SequenceLearner, SacLearner):
    """SAC on sequences."""


class RecurrentTd3Learner(_SequenceLearner, Td3Learner):
    """TD3 on sequences."""
