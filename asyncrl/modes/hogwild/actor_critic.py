"""PPO's and A2C's learner in a Hogwild process: statistics and units of returns are common, gradients are private.

PPO makes several optimizer steps from a rollout, each at the shared weights of that moment. Its ratio compares them
with the log-probabilities stored when the worker acted, so a step is right also after steps of other workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.algorithms.losses import Progress, Samples, VtraceResult
from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.buffers.shared_tensors import ReturnUnits
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.config.schema import TrainConfig
from asyncrl.inference.acting import Act
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.optimizer import ParameterStore, clip_gradient
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import read_block
from asyncrl.modes.hogwild.staleness import StalenessMeter

_MAX_TRIES = 1000
_MIN_CHANGE_OF_UNITS = 0.01
_CPU = torch.device("cpu")


def _without_limit(config: TrainConfig) -> TrainConfig:
    """The settings without the limit of the standard deviation, which needs one owner of the weights."""
    return config.model_copy(update={"final_stddev": None})


class HogwildActorCritic(OnPolicyLearner):
    """Learns from rollouts of its own."""

    def __init__(
        self,
        model: ActorCritic,
        config: TrainConfig,
        storage: ParameterStore,
        units: ReturnUnits | None,
        device: torch.device = _CPU,
        has_copies: bool = False,
        channel: WeightsChannel | None = None,
        meter: StalenessMeter | None = None,
    ) -> None:
        """Starts with the shared weights.

        Args:
            model: the network to act and learn with.
            config: the run's settings; its passes and minibatches are those of a rollout.
            storage: memory of its weights.
            units: units of returns of the shared critic; None where statistics come with published weights.
            device: where the network is.
            has_copies: whether the network has copies of the shared weights, which the parameter server cannot rescale.
            channel: published weights, which `begin` takes in place of shared ones.
            meter: measures the staleness of a worker's updates, and may bound it.
        """
        super().__init__(model, _without_limit(config), device, storage)
        self._take_step = self._take_step_from_newest
        self._storage = storage
        self._meter = meter
        self._channel = channel
        self._publication = 0
        self._block = torch.empty(self.block_size if channel is not None else 0)
        self._units = units
        self._has_copies = has_copies
        self._has_stepped = False  # from the present copy of the weights
        self._units_of_samples = 0.0, 1.0
        self._units_number = 0  # of the units in which the network predicts
        if units is not None:
            self._units_number, mean, std = units.read()
            self._set_units(mean, std)

    def begin(self) -> None:
        """Copies weights, statistics and units of returns for the next rollout, all of one moment."""
        self._pull()
        statistics = self._statistics
        if self._units is not None and self._config.normalize_input:
            statistics.obs_moments.merge()
            self.model.set_obs_statistics(statistics.obs_moments.mean, statistics.obs_moments.std)
        statistics.read_model()
        statistics.published = {self.policy_version: statistics.obs_statistics}

    def updates(self, dataset: Dataset, env_steps_before: int) -> Iterator[Progress]:
        """As `OnPolicyLearner.updates`; each step is at the newest weights, but the first at a copy that has acted."""
        self._has_stepped = self._channel is None and not self._has_copies
        return super().updates(dataset, env_steps_before)

    def _pull(self) -> None:
        """Copies weights and units of returns, both of one moment."""
        if self._channel is not None:
            news = self._channel.read(self._block.numpy(), self._publication)
            if news is not None:
                self._publication, self.policy_version = news.number, news.version
                read_block(self.model, self._flat, self._block)
                if self._meter is not None:
                    self._meter.record_pull(self.policy_version)
        if self._units is not None:
            for _ in range(_MAX_TRIES):
                self._units_number, mean, std = self._units.read()
                self._storage.sync()
                self._set_units(mean, std)
                if self._units.written == self._units_number:
                    break

    def follow_units(self) -> None:
        """Adopts units of returns that changed since `begin`.

        The parameter server has rescaled shared weights; copies of them are rescaled here. Values in a slot are in
        units of rewards, so they remain valid.
        """
        units = self._units
        if units is None or units.written == self._units_number:
            return
        self._units_number, mean, std = units.read()
        if self._has_copies:
            own = self.model.return_mean
            self.model.renormalize_returns(own.new_tensor([mean]), own.new_tensor([std]))
        else:
            self._set_units(mean, std)

    def act_in_units(self, act: Act) -> Act:
        """Returns `act` with values in units of rewards, also while the units of returns change."""
        units = self._units
        if units is None or self._has_copies:
            return act

        def act_and_check(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActorOutput:
            for _ in range(_MAX_TRIES):
                self.follow_units()
                answer = act(obs, state)
                if units.written == self._units_number:
                    break
            return answer

        return act_and_check

    def _take_step_from_newest(self, minibatch: Samples, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Takes a step with the newest weights, except with the copy that has collected the rollout for the first."""
        if self._has_stepped:
            self._pull()
        self._has_stepped = True

        def step() -> tuple[Tensor, Tensor]:
            return self._step(self._in_present_units(minibatch), learning_rate)

        return step() if self._meter is None else self._meter.update(step, self._pull)

    def _estimated_fields(self, estimates: VtraceResult, values: Tensor, rows: Tensor) -> dict[str, Tensor]:
        self._units_of_samples = float(self.model.return_mean), float(self.model.return_std)
        return super()._estimated_fields(estimates, values, rows)

    def _in_present_units(self, batch: Samples) -> Samples:
        """The batch with returns and values in the units in which the critic predicts now."""
        (old_mean, old_std), (mean, std) = self._units_of_samples, (self.model.return_mean, self.model.return_std)
        if (float(mean), float(std)) == (old_mean, old_std):
            return batch
        return batch._replace(
            normalized_return=(batch.normalized_return * old_std + old_mean - mean) / std,
            normalized_value=(batch.normalized_value * old_std + old_mean - mean) / std,
        )

    def _set_units(self, mean: float, std: float) -> None:
        self.model.return_mean.fill_(mean)
        self.model.return_std.fill_(std)

    def _update_statistics(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the rollout to the common statistics; acting and training use them from the next `begin` on."""
        self._statistics.update(raw_obs, raw_returns)


class ServerActorCritic(OnPolicyLearner):
    """The learner of the parameter server: it updates the units of returns, and checkpoints are saved from it."""

    def __init__(self, model: ActorCritic, config: TrainConfig, storage: ParameterStore, units: ReturnUnits) -> None:
        super().__init__(model, _without_limit(config), _CPU, storage)
        self._units = units
        _, mean, std = units.read()
        model.return_mean.fill_(mean)
        model.return_std.fill_(std)

    def follow(self, policy_version: int) -> None:
        """Adopts the workers' progress, before a publication or a checkpoint; moments are merged already.

        Where returns have changed, the shared critic's head is rescaled so that no prediction changes (PopArt).
        """
        self.policy_version = policy_version
        returns, obs = self._statistics.return_moments, self._statistics.obs_moments
        if self._config.normalize_returns and returns.count > 0:
            mean, std = returns.mean.float(), returns.std.float()
            old_mean, old_std = self.model.return_mean, self.model.return_std
            has_mean_changed = bool((mean - old_mean).abs() > _MIN_CHANGE_OF_UNITS * old_std)
            if has_mean_changed or bool((std / old_std).log().abs() > _MIN_CHANGE_OF_UNITS):
                with self._units.changing():
                    self.model.renormalize_returns(mean, std)
                    self._units.values[:] = [float(mean), float(std)]
        if self._config.normalize_input:
            self.model.set_obs_statistics(obs.mean, obs.std)

    def descend(self, gradient: Tensor, env_steps: int) -> None:
        """Clips a gradient `[N]` of workers and takes one step, at the learning rate after `env_steps` steps."""
        self._learning_rate.start_dataset(env_steps)
        self._gradient.copy_(gradient)
        grad_norm = clip_gradient(self._gradient, self._config.max_grad_norm)
        self._optimizer.step(self._learning_rate.value, torch.isfinite(grad_norm).logical_not().float())
        self.policy_version += 1
