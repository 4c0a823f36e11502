"""SAC with critics that predict distributions over returns, as SimbaV2 has (Lee et al. 2025, arXiv:2502.15280).

K is the number of critics, M that of bins, N that of combinations of choices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from asyncrl.algorithms.off_policy import Steps
from asyncrl.algorithms.sac import PolicySample, Sac
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.critics.settings import CriticSettings
from asyncrl.envs.spec import EnvSpec
from asyncrl.models.distributions import MOST_COMBINATIONS, ActionParts, make_distribution
from asyncrl.models.encoders import Inputs
from asyncrl.models.precision import without_autocast
from asyncrl.models.sac import TwinCritic


class DistributionalCritic(TwinCritic):
    """Critics whose outputs are a distribution over returns for each combination of choices.

    Attributes:
        support: [M] float32, returns of the bins.
    """

    support: Tensor

    def __init__(self, spec: EnvSpec, config: TrainConfig) -> None:
        own = CriticSettings.of(config)
        if ActionParts(make_distribution(spec.action, squash=True)).num_groups > 1:
            raise UsageError(
                f"--value_bins={own.value_bins} needs actions with at most {MOST_COMBINATIONS} combinations of "
                f"choices, and {spec.env_id} has {spec.action}: use --value_bins=none."
            )
        super().__init__(spec, config)
        num_bins = self.outputs_of_a_value(config)
        self.register_buffer("support", torch.linspace(-own.value_limit, own.value_limit, num_bins))

    def outputs_of_a_value(self, config: TrainConfig) -> int:
        return CriticSettings.of(config).value_bins or 1

    def values(self, inputs: Inputs, action: Tensor) -> Tensor:
        log_probs = self.predictions(inputs, action)
        with without_autocast(self.support):
            return log_probs.exp() @ self.support

    def predictions(self, inputs: Inputs, action: Tensor) -> Tensor:
        """Log-probabilities `[K, B, N, M]` of the bins, for the arguments of `values`."""
        outputs = self._outputs(inputs, action)
        return log_softmax(outputs.view(*outputs.shape[:2], -1, len(self.support)), dim=-1)


class DistributionalSac(Sac):
    """SAC whose critics are a `DistributionalCritic`."""

    def __post_init__(self) -> None:
        """Raises `UsageError` for other critics, which a user's policy may have."""
        super().__post_init__()
        if not isinstance(self.critic, DistributionalCritic):
            raise UsageError(
                f"--value_bins={CriticSettings.of(self.config).value_bins} needs critics that are a subclass of "
                "asyncrl.contrib.critics.distributional.DistributionalCritic, and the model has "
                f"{type(self.critic).__name__}: use --value_bins=none."
            )

    def critic_loss(
        self, steps: Steps, outputs: Tensor, next_outputs: Tensor, reward: Tensor, after: PolicySample, ent_coef: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy to the projected distribution over returns, and the values `[K, B]` of the actions."""
        assert isinstance(self.critic, DistributionalCritic)
        support = self.critic.support
        distribution = next_distribution(next_outputs, support, after.log_probs)
        returns = support - (ent_coef * after.neg_entropy).unsqueeze(1)
        returns = self.target(reward.unsqueeze(1), steps.discount.unsqueeze(1), returns)
        (chosen,) = self.parts.chosen(steps.action)
        bins = outputs[:, torch.arange(len(chosen), device=chosen.device), chosen]
        target = project_distribution(distribution, returns, support)
        return distribution_loss(bins, target), bins.detach().exp() @ support


def next_distribution(bin_log_probs: Tensor, support: Tensor, log_probs: Tensor) -> Tensor:
    """Probabilities `[B, M]` of returns after the next observations, without the entropy.

    For each combination of choices it is the distribution with the smaller mean, and over combinations their mixture.

    Args:
        bin_log_probs: [K, B, N, M], of the target critics for an action of the policy.
        support: [M].
        log_probs: [B, N], of the combinations in one group.
    """
    smaller = (bin_log_probs.exp() @ support).argmin(0, keepdim=True)
    index = smaller.unsqueeze(-1).expand(1, *bin_log_probs.shape[1:])
    distribution = bin_log_probs.gather(0, index).squeeze(0).exp()
    return (log_probs.exp().unsqueeze(-1) * distribution).sum(1)


def project_distribution(probabilities: Tensor, returns: Tensor, support: Tensor) -> Tensor:
    """The distribution `[B, M]` over bins that is nearest to one over other returns.

    Bellemare et al. 2017 (arXiv:1707.06887), equation 7: each return is clipped to the range of the bins, and its
    probability is shared by the two bins beside it, in proportion to their nearness.

    Args:
        probabilities: [B, M], of `returns: [B, M]`.
        returns: as the first argument.
        support: [M], at equal distances, in rising order.
    """
    low, step = support[0], support[1] - support[0]
    place = (torch.minimum(torch.maximum(returns, low), support[-1]) - low) / step
    lower = place.nan_to_num().floor().clamp(0, len(support) - 2)
    upper_share = place - lower
    index = lower.to(torch.int64)
    projected = torch.zeros_like(probabilities).scatter_add_(1, index, probabilities * (1.0 - upper_share))
    return projected.scatter_add_(1, index + 1, probabilities * upper_share)


def distribution_loss(bin_log_probs: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy from `target: [B, M]` to the critics' `[K, B, M]`, a mean over B and a sum over critics."""
    return -(target * bin_log_probs).sum(-1).mean(1).sum()
