"""Advantages against cases solved by hand and against the definition of the lambda-return."""

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses import GaeResult, gae


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(-1)


def flags(size: int, *rows: int) -> Tensor:
    result = torch.zeros(size, 1, dtype=torch.bool)
    result[list(rows)] = True
    return result


def run(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor | None = None
) -> GaeResult:
    valid = torch.ones_like(terminated) if valid is None else valid
    return gae(rewards, values, terminated, truncated, valid, gamma=0.5, gae_lambda=0.5)


def test_an_unbroken_column_bootstraps_from_the_row_after_the_last() -> None:
    result = run(column(1, 1, 1), column(1, 2, 3, 4), flags(3), flags(3))
    assert result.advantages.flatten().tolist() == [1.125, 0.5, 0.0]
    assert result.returns.flatten().tolist() == [2.125, 2.5, 3.0]


def test_termination_makes_the_next_value_zero_and_cuts_the_chain() -> None:
    result = run(column(1, 1, 2), column(1, 2, 3, 4), flags(3, 1), flags(3))
    assert result.advantages.flatten().tolist() == [0.75, -1.0, 1.0]


def test_truncation_bootstraps_from_the_final_observation_and_cuts_the_chain() -> None:
    rewards, values = column(1, 1, math.nan, 1), column(1, 2, 10, 3, 4)
    valid = ~flags(4, 2)
    result = run(rewards, values, flags(4), flags(4, 1), valid)
    assert result.advantages.flatten().tolist() == [2.0, 4.0, 0.0, 0.0]
    assert result.returns.flatten().tolist() == [3.0, 6.0, 10.0, 3.0]


def test_the_chain_is_cut_at_truncation_whatever_the_next_row_holds() -> None:
    result = run(column(1, 1, 1), column(1, 2, 3, 4), flags(3), flags(3, 0))
    assert result.advantages.flatten().tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_equals_the_mixture_of_n_step_returns(gae_lambda: float) -> None:
    generator = torch.Generator().manual_seed(3)
    num_rows, num_columns, gamma = 24, 16, 0.9
    rewards = torch.randn(num_rows, num_columns, generator=generator)
    values = torch.randn(num_rows + 1, num_columns, generator=generator)
    terminated = torch.rand(num_rows, num_columns, generator=generator) < 0.1
    truncated = torch.rand(num_rows, num_columns, generator=generator) < 0.15
    valid = torch.ones_like(terminated)
    for row in range(1, num_rows):
        valid[row] = ~(truncated[row - 1] & valid[row - 1])
    terminated, truncated = terminated & valid, truncated & valid
    result = gae(rewards, values, terminated, truncated, valid, gamma, gae_lambda)
    for start in range(num_rows):
        for env in range(num_columns):
            expected = 0.0
            if valid[start, env]:
                expected = _lambda_return(rewards, values, terminated, truncated, start, env, gamma, gae_lambda)
                expected -= float(values[start, env])
            assert float(result.advantages[start, env]) == pytest.approx(expected, abs=1e-5)


def _lambda_return(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    start: int,
    env: int,
    gamma: float,
    gae_lambda: float,
) -> float:
    """(1 - lambda) sum of lambda^(n-1) G_n, the longest return taking all of the weight that is left."""
    returns, rewards_so_far = [], 0.0
    for row in range(start, len(rewards)):
        num_steps = row - start + 1
        rewards_so_far += gamma ** (num_steps - 1) * float(rewards[row, env])
        bootstrap = 0.0 if terminated[row, env] else float(values[row + 1, env])
        returns.append(rewards_so_far + gamma**num_steps * bootstrap)
        if terminated[row, env] or truncated[row, env]:
            break
    mixture = sum((1 - gae_lambda) * gae_lambda**i * value for i, value in enumerate(returns[:-1]))
    return float(mixture + gae_lambda ** (len(returns) - 1) * returns[-1])
