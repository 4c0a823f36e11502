"""A2C's learner in a Hogwild process: statistics and units of returns are common to all, gradients are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from asyncrl.buffers.answers import ActionAnswer
from asyncrl.buffers.shared_tensors import ReturnUnits
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.parameter_store import ParameterStore
from asyncrl.models.acting import Act
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import read_block

_MOST_TRIES = 1000
_REUNIT_AT = 0.01
_CPU = torch.device("cpu")


class HogwildActorCritic(OnPolicyLearner):
    """Learns from rollouts of one pass and one minibatch each."""

    def __init__(
        self,
        model: ActorCritic,
        config: TrainConfig,
        storage: ParameterStore,
        units: ReturnUnits | None,
        device: torch.device = _CPU,
        has_copies: bool = False,
    ) -> None:
        """Starts with the shared weights as they are.

        Args:
            model: the network to act and learn with.
            config: the run's settings.
            storage: where its weights live.
            units: units of returns of the shared critic; None where statistics come with published weights.
            device: where the network is.
            has_copies: whether the network's weights are copies of the shared ones, which the keeper does not rescale.
        """
        once = config.model_copy(update={"num_epochs": 1, "num_batches_per_epoch": 1, "shuffle_minibatches": False})
        super().__init__(model, once, device, storage)
        self._units = units
        self._has_copies = has_copies
        self._units_number = 0  # of the units that the network is in
        if units is not None:
            self._units_number, mean, std = units.read()
            self._set_units(mean, std)

    def begin(self, pull: Callable[[], None]) -> None:
        """Takes over weights, units of returns and statistics, for the rollout that begins now.

        Args:
            pull: copies the weights; they and the units of their critic are of one moment.
        """
        if self._units is None:
            pull()
        else:
            self._pull_with_units(pull, self._units)
        self._obs_statistics = self._copy_obs_statistics()
        self._published_obs_statistics = {self.policy_version: self._obs_statistics}

    def follow_units(self) -> None:
        """Takes over units of returns that have moved since the weights were pulled.

        Shared weights were rescaled by the keeper; copies of them are rescaled here. Values in a slot are in units of
        rewards, so they remain right.
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
        """The same as `act`, with values in units of rewards although the units of returns move meanwhile."""
        units = self._units
        if units is None or self._has_copies:
            return act

        def act_and_look(obs: npt.NDArray[Any], state: npt.NDArray[Any]) -> ActionAnswer:
            for _ in range(_MOST_TRIES):
                self.follow_units()
                answer = act(obs, state)
                if units.written == self._units_number:
                    break
            return answer

        return act_and_look

    def _set_units(self, mean: float, std: float) -> None:
        self.model.return_mean.fill_(mean)
        self.model.return_std.fill_(std)

    def take_published(self, block: Tensor, policy_version: int) -> None:
        """Takes over a publication: weights and statistics of one moment."""
        self.policy_version = policy_version
        read_block(self.model, self._flat, block)

    def _pull_with_units(self, pull: Callable[[], None], units: ReturnUnits) -> None:
        for _ in range(_MOST_TRIES):
            self._units_number, mean, std = units.read()
            pull()
            self._set_units(mean, std)
            if units.written == self._units_number:
                break
        if self._config.normalize_input:
            self._obs_moments.merge()
            self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)

    def _take_in(self, raw_obs: Tensor, raw_returns: Tensor) -> None:
        """Adds the rollout to the common statistics; what acts and learns changes at the next `begin`."""
        if self._config.normalize_input:
            self._obs_moments.update(raw_obs)
        if self._config.normalize_returns:
            self._return_moments.update(raw_returns.unsqueeze(-1))


class KeptActorCritic(HogwildActorCritic):
    """The keeper's: it trains nothing by itself, keeps the units of returns, and is what checkpoints hold."""

    def keep_units(self) -> None:
        """Rescales the shared critic's head where returns have moved, so that no prediction changes (PopArt)."""
        units = self._units
        if units is None or not self._config.normalize_returns or self._return_moments.count == 0:
            return
        mean, std = self._return_moments.mean.float(), self._return_moments.std.float()
        old_mean, old_std = self.model.return_mean, self.model.return_std
        has_moved = (mean - old_mean).abs() > _REUNIT_AT * old_std, (std / old_std).log().abs() > _REUNIT_AT
        if not any(bool(moved) for moved in has_moved):
            return
        units.begin()
        self.model.renormalize_returns(mean, std)
        units.values[:] = [float(mean), float(std)]
        units.end()

    def follow(self, policy_version: int) -> None:
        """Follows what the workers have done, before a publication or a checkpoint; moments were merged before."""
        self.policy_version = policy_version
        self.keep_units()
        if self._config.normalize_input:
            self.model.set_obs_statistics(self._obs_moments.mean, self._obs_moments.std)

    def set_schedule(self, env_steps: int) -> None:
        """Moves the learning rate to where its schedule has it after so many steps."""
        self._learning_rate.start_dataset(env_steps)

    def descend_along(self, gradient: Tensor) -> None:
        """Clips a gradient `[N]` that others computed, and takes one step down it."""
        self._gradient.copy_(gradient)
        self._step(torch.zeros(()), self._learning_rate.value)
        self.policy_version += 1
