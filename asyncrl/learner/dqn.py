"""DQN's updates on batches of transitions: no processes, no shared memory.

One update computes targets, takes a step of the network, and moves the target network. `publication` gives the block
of weights and statistics that other roles act with; the probability of choices at random is one of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from asyncrl.algorithms import dqn
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner.optimizer import LearningRate, ParameterStore, SkippedSteps
from asyncrl.learner.replay_sampler import Transitions
from asyncrl.learner.sac import TrainedNetwork
from asyncrl.learner.state import LearnerState, Scalar, copies_of
from asyncrl.models.dqn import QNetwork
from asyncrl.models.encoders import Inputs, split_tensor
from asyncrl.models.flat import FlatParameters, block_size, write_block
from asyncrl.models.mlp_pass import MlpPass
from asyncrl.models.stacked_mlp import StackedMlp
from asyncrl.monitoring.reports import DqnMetrics

_FIGURES = ("loss", "q_mean", "sum of inputs", "grad_norm")
_MODEL, _TARGET = "model", "target"


class DqnLearner:
    """Owns the network and its target network, the optimizer, and the running statistics of observations.

    Attributes:
        policy_version: updates so far.
        skipped_steps: steps that were skipped since this learner was made.
        notice: a message for the user about how updates run; None.
        model: the network, with the newest statistics.
        device: of all tensors.
        ranks: the learners that train together.
    """

    def __init__(
        self,
        model: QNetwork,
        config: TrainConfig,
        spec: EnvSpec,
        device: torch.device,
        storage: ParameterStore | None = None,
    ) -> None:
        """Starts with the weights of the model, on `device`; `storage` allocates their memory."""
        self._storage = storage = storage or ParameterStore()
        self.ranks = storage.ranks
        self.model = model.to(device)
        self.target_model = copy.deepcopy(self.model)
        self.policy_version = self.skipped_steps = 0
        self.notice: str | None = None
        self.device = device
        self._config = config
        # Hand-written passes through a perceptron are faster than autograd and compute the same.
        mlp = self.model.mlp if isinstance(self.model.mlp, StackedMlp) else None
        if self.model.encoder is not None or config.precision == "bf16":
            mlp = None
        self._network = TrainedNetwork(_MODEL, self.model, mlp, config, torch.float32, storage)
        self._target = FlatParameters(
            self.target_model, with_grad=False, hold=lambda initial: storage.allocate(_TARGET, initial)
        ).data
        self._target_layers = () if mlp is None else mlp.layers_in(self._target)
        self._pass, self._target_pass = MlpPass(config.nonlinearity), MlpPass(config.nonlinearity)
        self._update = self._update_by_autograd if mlp is None else self._update_by_passes
        self._learning_rate = LearningRate(config, self.ranks.num_ranks)
        self._obs_moments = storage.moments("obs", model.observation_size, device)
        self._skipped = SkippedSteps(config.max_skipped_steps)
        self._rate = torch.zeros((), device=device)

    def set_hyperparameters(self, new_values: Hyperparameters) -> None:
        """Trains with new values from the next update on."""
        self._config = new_values.apply_to(self._config)
        self._learning_rate.follow(self._config)
        self._network.max_grad_norm = self._config.max_grad_norm

    @property
    def block_size(self) -> int:
        """Elements of a publication."""
        return block_size(self.model)

    def publication(self, out: Tensor | None = None) -> Tensor:
        """Weights and statistics as one block, to be published as `policy_version`.

        The block is `out: [block_size] float32`, or a new CPU tensor.
        """
        return write_block(self.model, self._network.flat, out)

    def observe(self, obs: Tensor) -> None:
        """Adds raw rows of observations `[N, row_size]` to the statistics, rows of a replay as often as drawn."""
        self._obs_moments.update(split_tensor(self.model.layout, obs.to(self.device)).floats.float())
        for network in (self.model, self.target_model):
            network.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)

    def train(self, batches: Sequence[Transitions], env_steps_before: int = 0) -> DqnMetrics | None:
        """Makes one update for each batch; skips steps whose loss or gradient is not finite.

        Returns means over the steps that were taken; None if none was.

        Args:
            batches: at least one, of raw transitions on any device.
            env_steps_before: environment steps collected before; the schedules read it.

        Raises:
            RunFailed: too many steps in a row were skipped.
        """
        self._learning_rate.start_dataset(env_steps_before)
        self._rate.fill_(self._learning_rate.value)
        epsilon = exploration_rate(self._config, env_steps_before)
        self.model.epsilon.fill_(epsilon)
        figures = []
        for batch in batches:
            self.policy_version += 1
            figures.append(self._update(batch if batch.obs.device == self.device else batch.to(self.device)))
        rows = torch.stack(figures)
        were_taken = torch.isfinite(rows).all(1)
        if self._skipped.note(were_taken.tolist()):
            named = {**batches[-1]._asdict(), "weights": self._network.flat.data}
            raise self._skipped.diagnosis(dict(zip(_FIGURES, rows[-1].tolist(), strict=True)), named)
        self.skipped_steps = self._skipped.total
        if not were_taken.any():
            return None
        loss, q_mean, _, grad_norm = rows[were_taken].mean(0).tolist()
        return DqnMetrics(loss, q_mean, self._learning_rate.value, grad_norm, epsilon)

    def state_dict(self) -> LearnerState:
        """Copies the complete state of the learner; the copies share no memory with it or with one another."""
        scalars: dict[str, Scalar] = {
            "policy_version": self.policy_version,
            "learning_rate": self._learning_rate.of_one_rank,
            "obs_count": self._obs_moments.count,
        }
        return LearnerState(copies_of(self.model.state_dict()), copies_of(self._tensors()), scalars)

    def load_state_dict(self, state: LearnerState) -> None:
        """Continues from `state`; the caller publishes before the next step is collected."""
        self.model.load_state_dict(state.model)
        for name, tensor in self._tensors().items():
            tensor.copy_(state.optimizer[name])
        self.target_model.statistics.copy_(self.model.statistics)
        self.policy_version = int(state.scalars["policy_version"])
        self._learning_rate.resume(float(state.scalars["learning_rate"]))
        self._obs_moments.count = int(state.scalars["obs_count"])

    def _update_by_autograd(self, batch: Transitions) -> Tensor:
        """One update of any network; returns `_FIGURES` [4]."""
        model, obs, later = self.model, self.model.inputs_of(batch.obs), self.model.inputs_of(batch.next_obs)
        with torch.no_grad():
            next_values, target_values = self._values(model, later), self._values(self.target_model, later)
            mask = model.mask_of(later.floats)
            target = dqn.double_target(batch.reward, batch.discount, next_values, target_values, mask)
        values = self._values(model, obs).gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        loss = dqn.dqn_loss(values, target)
        self._network.flat.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._step(loss.detach(), values.detach(), obs.floats.sum() + later.floats.sum())

    @torch.no_grad()
    def _update_by_passes(self, batch: Transitions) -> Tensor:
        """The same without autograd, for a perceptron over numbers."""
        size, model = len(batch.reward), self.model
        rows = torch.cat((batch.obs, batch.next_obs)).to(torch.float32)
        inputs = model.normalize_obs(rows, out=rows)
        outputs = self._pass.forward(self._network.layers, inputs)[0]
        target_values = model.values_of(self._target_pass.forward(self._target_layers, inputs[size:])[0])
        all_values, choice = model.values_of(outputs), batch.action.unsqueeze(-1)
        target = dqn.double_target(batch.reward, batch.discount, all_values[size:], target_values)
        values = all_values[:size].gather(-1, choice).squeeze(-1)
        gradient = (values - target).clamp_(-1.0, 1.0).div_(size).unsqueeze(-1)
        by_value = torch.zeros_like(all_values[:size]).scatter_(-1, choice, gradient)
        by_output = model.gradient_of_outputs(by_value).unsqueeze(0)
        self._pass.backward(self._network.layers, by_output, self._network.gradients)
        return self._step(dqn.dqn_loss(values, target), values, inputs.sum())

    @torch.no_grad()
    def _step(self, loss: Tensor, values: Tensor, sum_of_inputs: Tensor) -> Tensor:
        """Steps down the gradient, and moves the target network; returns `_FIGURES` [4]."""
        figures = self._network.step(self._rate, torch.stack((loss, values.mean(), sum_of_inputs)))
        self._storage.polyak_update(self._target, self._network.flat.data, self._config.tau)
        return figures

    def _values(self, network: QNetwork, inputs: Inputs) -> Tensor:
        enabled = self._config.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False):
            return network.values(inputs)

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors in use, by their names in a checkpoint."""
        return {
            **{f"model.{name}": tensor for name, tensor in self._network.tensors().items()},
            "target": self._target,
            "obs_mean": self._obs_moments.mean,
            "obs_variance": self._obs_moments.variance,
        }


def exploration_rate(config: TrainConfig, env_steps: int) -> float:
    """The probability of a choice at random after so many environment steps: it falls linearly, then stays."""
    last = config.exploration_fraction * config.train_for_env_steps
    share = min(1.0, env_steps / last) if last > 0 else 1.0
    return config.exploration_initial_eps + share * (config.exploration_final_eps - config.exploration_initial_eps)
