"""What a dataset says of its actions: advantages and returns, from rewards and the values of a critic."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from asyncrl.algorithms.losses import gae, vtrace
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.dataset import Dataset


class Estimates(NamedTuple):
    """All float32, in units of scaled rewards.

    Attributes:
        values: [T+1, C], those that the others follow from.
        advantages: [T, C].
        returns: [T, C], what the critic learns.
        weights: [T, C], V-trace's clipped importance weights of the actions; None without it.
    """

    values: Tensor
    advantages: Tensor
    returns: Tensor
    weights: Tensor | None


def estimate(dataset: Dataset, values: Tensor, log_ratios: Tensor | None, config: TrainConfig) -> Estimates:
    """Advantages and returns by GAE, or by V-trace where there are log-ratios.

    Args:
        dataset: rewards as the environment gave them, and ends of episodes.
        values: [T+1, C] float32, in units of scaled rewards.
        log_ratios: [T, C] float32, log-probability of each action before training minus that when it was chosen.
        config: scales and clips rewards, and discounts them.
    """
    reward = dataset.reward * config.reward_scale
    if config.reward_clip is not None:
        reward.clamp_(-config.reward_clip, config.reward_clip)
    rest = (reward, values, dataset.terminated, dataset.truncated, dataset.valid, config.gamma, config.gae_lambda)
    if log_ratios is None:
        return Estimates(values, *gae(*rest), None)
    result = vtrace(log_ratios, *rest, max_rho=config.vtrace_rho, max_c=config.vtrace_c)
    return Estimates(values, result.advantages, result.returns, result.weights)
