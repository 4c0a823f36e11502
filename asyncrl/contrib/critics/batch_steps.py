"""Updates with batch renormalization, and without target critics (CrossQ, Bhatt et al. 2024, arXiv:1902.05605v4)."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algorithms.off_policy import Steps
from asyncrl.contrib.critics.block_network import normalizing_by_batch
from asyncrl.models.encoders import Inputs
from asyncrl.models.sac import SacActor, TwinCritic


class BatchSteps(Steps):
    """Networks that are trained normalize with the statistics of the batch.

    Without target critics the critics take current and next observations as one batch, so that both have the same
    statistics.
    """

    def policy(self, actor: SacActor) -> Tensor:
        with normalizing_by_batch(actor):
            return super().policy(actor)

    def critic_outputs(
        self, critic: TwinCritic, target: TwinCritic | None, action: Tensor, next_action: Tensor
    ) -> tuple[Tensor, Tensor]:
        with normalizing_by_batch(critic):
            if target is not None:
                return super().critic_outputs(critic, target, action, next_action)
            next_obs, pixels = self.later.slice(-len(next_action)), None
            if self.obs.pixels is not None and next_obs.pixels is not None:
                pixels = torch.cat((self.obs.pixels, next_obs.pixels))
            both = Inputs(torch.cat((self.obs.floats, next_obs.floats)), pixels)
            with self.precision():
                joint = critic.predictions(both, torch.cat((action.to(next_action), next_action)))
        return joint[:, : len(action)], self.target_outputs(joint[:, len(action) :])
