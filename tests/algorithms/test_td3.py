"""TD3's targets and losses against its formulas on cases solved by hand."""

from __future__ import annotations

import torch

from asyncrl.algorithms import td3


def test_the_smoothing_noise_is_clipped_and_the_action_stays_within_its_bounds() -> None:
    action = torch.tensor([[0.0], [0.0], [0.0], [0.9], [-0.9]])
    noise = torch.tensor([[1.0], [10.0], [-10.0], [2.0], [-2.0]])
    found = td3.smoothed_action(action, noise, stddev=0.2, limit=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.2], [0.5], [-0.5], [1.0], [-1.0]]))


def test_the_target_is_by_the_smaller_critic_and_ends_with_the_episode() -> None:
    reward, discount = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.0])
    values = torch.tensor([[4.0, -6.0, 8.0], [2.0, 8.0, 8.0]])
    found = td3.clipped_double_target(reward, discount, values)
    torch.testing.assert_close(found, torch.tensor([2.0, -2.0, 1.0]))
