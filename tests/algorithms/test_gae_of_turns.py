"""Advantages of agents that wait between their actions, against plain GAE over the actions alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.losses import gae, vtrace


def test_what_happens_while_an_agent_waits_belongs_to_its_action() -> None:
    # acts, waits (reward 2), acts, waits (reward 3, terminated).
    rewards, values = torch.tensor([[1.0], [2.0], [10.0], [3.0]]), torch.tensor([[5.0], [99.0], [7.0], [99.0], [99.0]])
    idle = torch.tensor([[False], [True], [False], [True]])
    terminated = torch.tensor([[False], [False], [False], [True]])
    result = gae(rewards, values, terminated, torch.zeros_like(idle), ~idle, 0.5, 0.5, idle)
    last = 13.0 - 7.0
    first = 3.0 + 0.5 * 7.0 - 5.0 + 0.25 * last
    assert result.advantages[[0, 2], 0].tolist() == [first, last]


def random_columns(seed: int) -> dict[str, Tensor]:
    """Columns [40, 30] in which agents act, wait, terminate and are cut off in any row, by the rule of rows."""
    random, shape = np.random.default_rng(seed), (40, 30)
    idle = random.random(shape) < 0.4
    terminated = random.random(shape) < 0.1
    truncated = (random.random(shape) < 0.1) & ~terminated
    valid = ~idle
    for row in range(1, len(idle)):
        after = truncated[row - 1]
        valid[row] &= ~after
        idle[row] &= ~after
        terminated[row] &= ~after
        truncated[row] &= ~after
    fields = {"terminated": terminated, "truncated": truncated, "valid": valid, "idle": idle}
    rewards, values = random.normal(size=shape), random.normal(size=(shape[0] + 1, shape[1]))
    fields |= {"rewards": rewards.astype(np.float32), "values": values.astype(np.float32)}
    return {name: torch.from_numpy(field) for name, field in fields.items()}


def actions_alone(columns: dict[str, Tensor], column: int) -> tuple[list[int], dict[str, Tensor]]:
    """One column without the rows in which the agent waits, what happened there added to the action before."""
    rows: list[int] = []
    reward, terminated, truncated, valid, value = [], [], [], [], []
    was_ended = True
    for row in range(len(columns["rewards"])):
        if columns["idle"][row, column]:
            if not was_ended:
                reward[-1] += float(columns["rewards"][row, column])
                terminated[-1] |= bool(columns["terminated"][row, column])
                truncated[-1] |= bool(columns["truncated"][row, column])
        else:
            rows.append(row)
            reward.append(float(columns["rewards"][row, column]))
            terminated.append(bool(columns["terminated"][row, column]))
            truncated.append(bool(columns["truncated"][row, column]))
            valid.append(bool(columns["valid"][row, column]))
            value.append(float(columns["values"][row, column]))
            was_ended = not valid[-1]
        was_ended |= bool(columns["terminated"][row, column] | columns["truncated"][row, column])
    value.append(float(columns["values"][-1, column]))
    fields = {"rewards": reward, "values": value}
    flags = {"terminated": terminated, "truncated": truncated, "valid": valid}
    compact = {name: torch.tensor(field).unsqueeze(-1) for name, field in (fields | flags).items()}
    return rows, compact


@pytest.mark.parametrize("with_vtrace", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_waiting_changes_nothing_but_where_rewards_stand(seed: int, with_vtrace: bool) -> None:
    columns = random_columns(seed)
    log_ratios = 0.5 * torch.randn(columns["rewards"].shape, generator=torch.Generator().manual_seed(seed))
    bounds = {"gamma": 0.9, "gae_lambda": 0.8}
    weights = {"max_rho": 1.2, "max_c": 0.8}
    found = vtrace(log_ratios, **columns, **bounds, **weights) if with_vtrace else gae(**columns, **bounds)
    num_compared = 0
    for column in range(columns["rewards"].shape[1]):
        rows, compact = actions_alone(columns, column)
        compact_ratios = log_ratios[rows, column].unsqueeze(-1)
        expected = vtrace(compact_ratios, **compact, **bounds, **weights) if with_vtrace else gae(**compact, **bounds)
        is_sample = compact["valid"].flatten()
        for name in ("advantages", "returns"):
            here = getattr(found, name)[rows, column][is_sample]
            torch.testing.assert_close(here, getattr(expected, name).flatten()[is_sample])
        num_compared += int(is_sample.sum())
    assert num_compared > 300
