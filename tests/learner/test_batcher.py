"""A dataset holds the columns it was given, side by side in their order."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BOX, CHOICE, planned, small_arena

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.envs.spec import EnvSpec
from asyncrl.learner import dataset as batcher_module
from asyncrl.learner.dataset import Batcher, Dataset
from asyncrl.learner.slot_ledger import Columns

PARTS = [
    Columns(4, 2, 3, is_last=True),
    Columns(0, 0, 3, is_last=True),
    Columns(2, 0, 2, is_last=False),
]
PLACES = [(4, 2), (0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]


def random_slots(spec: EnvSpec = BOX, **settings: Any) -> TrajectorySlots:
    plan = planned(**{"batch_size": 12, "num_workers": 3, "num_envs_per_worker": 3, **settings})
    slots = small_arena(plan, spec)[1]
    random = np.random.default_rng(0)
    for field in fields(Dataset):
        array = getattr(slots, field.name)
        if array is None:
            continue
        array[:] = random.integers(0, 2 if array.dtype == np.bool_ else 1000, size=array.shape)
    slots.chosen_at[:] = random.integers(0, 1000, size=slots.chosen_at.shape)
    return slots


@pytest.mark.parametrize("spec", [BOX, CHOICE], ids=["box", "discrete"])
def test_every_field_holds_the_right_columns(spec: EnvSpec) -> None:
    slots = random_slots(spec)
    batcher = Batcher(slots, columns_per_dataset=6)
    dataset = batcher.collect(PARTS)
    for column, (slot, env) in enumerate(PLACES):
        for name, field in dataset.tensors().items():
            if name == "policy_version":
                expected = slots.policy_version[slot, :-1]
            elif name == "rnn_state":
                expected = slots.rnn_state[slot, :1, env]
            else:
                expected = getattr(slots, name)[slot, :, env]
            stored = field[:, column]
            assert stored.dtype == torch.from_numpy(expected).dtype
            assert torch.equal(stored, torch.from_numpy(expected)), name
    kept = dataset.obs.clone()
    slots.obs[:] = -1.0
    assert torch.equal(dataset.obs, kept)


def test_recurrent_states_are_those_at_the_beginning_of_each_sequence() -> None:
    slots = random_slots(use_rnn=True, rnn_size=5, rollout=6, batch_size=36)
    dataset = Batcher(slots, columns_per_dataset=6, recurrence=1).collect(PARTS)
    assert dataset.rnn_state.shape == (slots.rollout, 6, 10)
    for column, (slot, env) in enumerate(PLACES):
        np.testing.assert_array_equal(dataset.rnn_state[:, column], slots.rnn_state[slot, :-1, env])
    every_third = Batcher(slots, columns_per_dataset=6, recurrence=3).collect(PARTS)
    assert torch.equal(every_third.rnn_state, dataset.rnn_state[::3])


def test_lag_is_measured_over_samples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = random_slots()
    slots.valid[:] = True
    slots.policy_version[:] = 90
    slots.policy_version[2, 0] = 70
    slots.policy_version[4] = 10
    slots.valid[4] = False
    slots.chosen_at[:] = 50.0
    monkeypatch.setattr(batcher_module, "time", SimpleNamespace(monotonic=lambda: 50.25))
    batcher = Batcher(slots, columns_per_dataset=6, steady_lag_bound=10)
    batcher.collect(PARTS)
    lag = batcher.lag(learner_version=100)
    # 5 valid columns of 2 rows, 2 of these 10 rows of version 70
    assert lag.mean == pytest.approx((8 * 10 + 2 * 30) / 10)
    assert (lag.max, lag.age_ms) == (30, pytest.approx(250.0))
    assert lag.over_bound == pytest.approx(0.2)  # a lag of 10 is within it
