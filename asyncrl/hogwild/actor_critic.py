"""A2C's learner in a Hogwild process: statistics and units of returns are common to all, gradients are its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.buffers.shared_tensors import ReturnUnits
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.storage import Storage
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import read_block

_MOST_READS = 1000
_REUNIT_AT = 0.01
_CPU = torch.device("cpu")


class HogwildActorCritic(OnPolicyLearner):
    """Learns from rollouts of one pass and one minibatch each."""

    def __init__(
        self,
        model: ActorCritic,
        config: TrainConfig,
        storage: Storage,
        units: ReturnUnits | None,
        device: torch.device = _CPU,
    ) -> None:
        """Starts with the shared weights as they are; without `units`, statistics come with the weights."""
        once = config.model_copy(update={"num_epochs": 1, "num_batches_per_epoch": 1, "shuffle_minibatches": False})
        super().__init__(model, once, device, storage)
        self._units = units
        self._begun_at = 0
        if units is not None:
            self._take_units(units)

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

    @property
    def has_lost_its_units(self) -> bool:
        """Whether the critic was rescaled since `begin`: values and returns of this rollout are in other units now."""
        return self._units is not None and self._units.written != self._begun_at

    def _take_units(self, units: ReturnUnits) -> None:
        self.model.return_mean.fill_(float(units.values[0]))
        self.model.return_std.fill_(float(units.values[1]))

    def take_published(self, block: Tensor, policy_version: int) -> None:
        """Takes over a publication: weights and statistics of one moment."""
        self.policy_version = policy_version
        read_block(self.model, self._flat, block)

    def _pull_with_units(self, pull: Callable[[], None], units: ReturnUnits) -> None:
        for _ in range(_MOST_READS):
            before = units.written
            pull()
            self._take_units(units)
            self._begun_at = before
            if before % 2 == 0 and units.written == before:
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
