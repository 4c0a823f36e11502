"""V-trace against the paper's formula in float64, against GAE where there is no lag, and across ends of episodes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses import VtraceResult, gae, vtrace

GAMMA = 0.9


def random_trajectories(num_rows: int, num_columns: int, seed: int) -> dict[str, Tensor]:
    """Trajectories in which episodes end both ways; a truncated row is followed by one that is not valid."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_rows, num_columns)
    terminated = torch.rand(shape, generator=generator) < 0.15
    truncated = torch.rand(shape, generator=generator) < 0.15
    valid = torch.ones(shape, dtype=torch.bool)
    for row in range(1, num_rows):
        valid[row] = ~(truncated[row - 1] & valid[row - 1])
    return {
        "rewards": torch.randn(shape, generator=generator),
        "values": torch.randn((num_rows + 1, num_columns), generator=generator),
        "terminated": terminated & valid,
        "truncated": truncated & valid & ~terminated,
        "valid": valid,
    }


def paper(column: dict[str, list[float]], log_ratios: list[float], max_rho: float, max_c: float) -> list[float]:
    """v_s of every valid row of one column, by the sum over the rest of the episode (equation 1)."""
    rewards, values = column["rewards"], column["values"]
    targets = []
    for start in range(len(rewards)):
        total, trace = values[start], 1.0
        for row in range(start, len(rewards)):
            if not column["valid"][row]:
                break
            ratio = math.exp(log_ratios[row])
            next_value = 0.0 if column["terminated"][row] else values[row + 1]
            delta = min(ratio, max_rho) * (rewards[row] + GAMMA * next_value - values[row])
            total += GAMMA ** (row - start) * trace * delta
            trace *= min(ratio, max_c)
            if column["terminated"][row] or column["truncated"][row]:
                break
        targets.append(total)
    return targets


@pytest.mark.parametrize(("max_rho", "max_c"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5)])
def test_returns_are_the_papers(max_rho: float, max_c: float) -> None:
    trajectories = random_trajectories(12, 20, seed=1)
    log_ratios = 0.7 * torch.randn(12, 20, generator=torch.Generator().manual_seed(2))
    result = vtrace(log_ratios, **trajectories, gamma=GAMMA, gae_lambda=1.0, max_rho=max_rho, max_c=max_c)
    for index in range(20):
        column = {name: tensor[:, index].double().tolist() for name, tensor in trajectories.items()}
        expected = torch.tensor(paper(column, log_ratios[:, index].double().tolist(), max_rho, max_c))
        torch.testing.assert_close(result.returns[:, index], expected, atol=1e-5, rtol=1e-5)
    # The advantage of an action: its reward, and what the return says of the state that followed.
    goes_on = trajectories["valid"] & ~trajectories["terminated"] & ~trajectories["truncated"]
    goes_on[-1] = False
    following = torch.cat((result.returns[1:], torch.zeros(1, 20)))
    expected = trajectories["rewards"] + GAMMA * following - trajectories["values"][:-1]
    torch.testing.assert_close(result.advantages[goes_on], expected[goes_on])


@pytest.mark.parametrize("gae_lambda", [0.0, 0.6, 1.0])
def test_without_lag_it_is_generalized_advantage_estimation(gae_lambda: float) -> None:
    trajectories = random_trajectories(15, 30, seed=3)
    result = run_without_lag(trajectories, gae_lambda)
    expected = gae(**trajectories, gamma=GAMMA, gae_lambda=gae_lambda)
    torch.testing.assert_close(result.advantages, expected.advantages)
    torch.testing.assert_close(result.returns, expected.returns)
    assert torch.equal(result.weights, trajectories["valid"].float())


def test_what_rows_without_an_action_hold_is_not_read() -> None:
    trajectories = random_trajectories(15, 30, seed=5)
    clean = run_without_lag(trajectories, 0.9)
    log_ratios = torch.zeros(15, 30)
    for tensor in (log_ratios, trajectories["rewards"]):
        tensor[~trajectories["valid"]] = math.nan
    dirty = vtrace(log_ratios, **trajectories, gamma=GAMMA, gae_lambda=0.9, max_rho=1.0, max_c=1.0)
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before, after)


def run_without_lag(trajectories: dict[str, Tensor], gae_lambda: float) -> VtraceResult:
    log_ratios = torch.zeros_like(trajectories["rewards"])
    return vtrace(log_ratios, **trajectories, gamma=GAMMA, gae_lambda=gae_lambda, max_rho=1.0, max_c=1.0)
