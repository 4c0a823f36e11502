"""The rows of one policy are packed into datasets: each one once, and with the estimates and states that it had."""

from __future__ import annotations

import time
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from critics import with_values
from datasets import BOX, CPU, train_on
from policy_slots import T, draw_episodes, empty_slots

from asyncrl.algorithms.losses import gae
from asyncrl.buffers.slots import SlotStateError
from asyncrl.config.schema import TrainConfig
from asyncrl.learner.dataset import Dataset
from asyncrl.learner.on_policy import OnPolicyLearner
from asyncrl.learner.policy_rows import PolicyRows
from asyncrl.models.actor_critic import ActorCritic

NO_LIMIT = 1000


def collect(rows: PolicyRows, slots: Any, version: int = 8) -> list[Dataset]:
    """All complete datasets of all slots, one after the other, copied; the last one may be incomplete."""
    datasets = []

    def train() -> bool:
        dataset = rows.take(version)
        if dataset is None:
            return False
        datasets.append(copied(dataset))
        rows.release()
        return True

    for slot in range(len(slots.reward)):
        while not rows.add(slot):
            assert train(), "no room, and nothing to train on"
    while train():
        pass
    rows.complete()
    train()
    return datasets


def copied(dataset: Dataset) -> Dataset:
    return Dataset(**{name: tensor.clone() for name, tensor in dataset.tensors().items()})


def test_a_policy_with_narrower_rows_gets_their_beginnings() -> None:
    slots = empty_slots(1, 2)
    slots.valid[:] = True
    slots.obs[:] = np.random.default_rng(0).normal(size=slots.obs.shape)
    slots.action[:] = np.random.default_rng(1).normal(size=slots.action.shape)
    own = {"obs": (2,), "action": (1,), "action_parameters": (3,), "log_prob": ()}
    (dataset,) = collect(PolicyRows(0, slots, None, 1, None, NO_LIMIT, row_shapes=own), slots)
    np.testing.assert_array_equal(dataset.obs.numpy(), slots.obs[0, :, :, :2])
    np.testing.assert_array_equal(dataset.action.numpy(), slots.action[0, :, :, :1])
    assert dataset.action_parameters.shape == (T, 2, 3) and dataset.log_prob.shape == (T, 2)


def live(rows: Any) -> Any:
    return rows.valid if rows.idle is None else rows.valid | rows.idle


def check(datasets: list[Dataset], slots: Any, policy: int, recurrence: int) -> int:
    """Checks each row against its source; returns the number of cuts."""
    shape = slots.reward.shape
    place_of = np.full(shape, -1)  # of each row in the datasets: neighbours in a column have neighbouring numbers
    packed, first = np.zeros(shape), 0
    for dataset in datasets:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in dataset.tensors().values())
        is_live = live(dataset).numpy()
        rows, columns = is_live.nonzero()
        source = np.unravel_index(dataset.obs[rows, columns, 0].numpy().astype(int), slots.policy_idx.shape)
        assert (place_of[source] == -1).all() and len(set(zip(*source, strict=True))) == len(rows), "copied twice"
        place_of[source] = first + columns * (T + 1) + rows
        first += dataset.obs.shape[1] * (T + 1)
        assert (slots.policy_idx[source] == policy).all()
        for field in fields(Dataset):
            if field.name not in ("rnn_state", "truncated") and getattr(slots, field.name) is not None:
                stored = getattr(dataset, field.name)[rows, columns].numpy()
                np.testing.assert_array_equal(stored, getattr(slots, field.name)[source], field.name)
        assert (dataset.truncated[rows, columns].numpy() >= slots.truncated[source]).all()
        begins = dataset.begins[rows, columns].numpy()
        states = dataset.rnn_state[rows // recurrence, columns].numpy()
        np.testing.assert_array_equal(states[rows % recurrence == 0], slots.rnn_state[source][rows % recurrence == 0])
        is_reset = slots.rnn_state[source].any(1) & begins
        for slot, row, column in zip(*(part[is_reset] for part in source), strict=True):
            # No sample follows one that `end_slot` dropped.
            assert not slots.valid[slot, row:, column].any(), "a recurrent state would be set to zero"
        continued = ~begins & (rows > 0)
        before = (source[0][continued], source[1][continued] - 1, source[2][continued])
        assert (place_of[before] == place_of[tuple(part[continued] for part in source)] - 1).all()
        packed[source] = estimate(dataset, lambda field: field)[rows, columns]
    is_own = (slots.policy_idx[:, :T] == policy) & live(slots)
    np.testing.assert_array_equal(place_of >= 0, is_own)
    # The same estimates as in the slots, whose episodes end where a segment was cut.
    goes_on = is_own[:, :-1] & is_own[:, 1:] & ~(slots.terminated | slots.truncated)[:, :-1]
    is_cut = np.zeros_like(is_own)
    is_cut[:, :-1] = goes_on & (place_of[:, :-1] + 1 != place_of[:, 1:])
    if slots.idle is not None:
        assert not (is_cut[:, :-1] & slots.idle[:, 1:]).any(), "cut where an agent waits"
    cut = SimpleNamespace(**{**vars(slots), "truncated": slots.truncated | is_cut})
    samples = is_own & slots.valid
    for slot in range(len(place_of)):
        expected = estimate(cut, lambda field, slot=slot: field[slot])
        np.testing.assert_allclose(packed[slot][samples[slot]], expected[samples[slot]], atol=1e-5)
    return int(is_cut.sum())


def estimate(rows: Any, part: Any) -> np.ndarray:
    names = ("reward", "value", "terminated", "truncated", "valid")
    reward, value, terminated, truncated, valid = (torch.as_tensor(part(getattr(rows, name))) for name in names)
    idle = None if rows.idle is None else torch.as_tensor(part(rows.idle))
    return gae(reward, value, terminated, truncated, valid, 0.9, 0.8, idle).advantages.numpy()


@pytest.mark.parametrize("agents", [False, True], ids=["one agent", "agents"])
@pytest.mark.parametrize("rnn_state_size", [0, 2])
@pytest.mark.parametrize("columns", [1, 5, None])
@pytest.mark.parametrize("end", [0.02, 0.2])
def test_every_own_row_is_trained_on_once_with_the_estimates_of_its_episode(
    agents: bool, rnn_state_size: int, columns: int | None, end: float
) -> None:
    num_cuts = 0
    for seed in range(3):
        random = np.random.default_rng(seed)
        slots = empty_slots(int(random.integers(1, 20)), int(random.integers(1, 7)), agents, rnn_state_size)
        num_policies = int(random.integers(1, 4))
        draw_episodes(slots, random, num_policies, end)
        for policy in range(num_policies):
            recurrence = int(random.choice([2, 4, 8]))
            rows = PolicyRows(policy, slots, columns, 2, recurrence, NO_LIMIT)
            datasets = collect(rows, slots)
            num_cuts += check(datasets, slots, policy, recurrence)
            if columns is None:
                assert len(datasets) == 1
            elif rnn_state_size == 0 and not agents:
                for dataset in datasets[:-1]:
                    assert dataset.valid.shape[1] == columns
                    assert dataset.valid[-3:].any(0).all(), "complete datasets are full"
    assert num_cuts > 0 or end < 0.1


def test_columns_of_one_policy_are_copied_in_their_order() -> None:
    random = np.random.default_rng(0)
    for owned in ([0, 1, 2, 3, 4], [1, 3], [0, 1, 4], [2]):
        slots = empty_slots(3, 5)
        draw_episodes(slots, random, 1, 0.1)
        slots.policy_idx[:] = 1
        slots.policy_idx[:, :, owned] = 0
        (dataset,) = collect(PolicyRows(0, slots, None, 1, None, NO_LIMIT), slots)
        for name in ("obs", "value", "reward", "truncated", "valid"):
            expected = np.concatenate([getattr(slots, name)[slot][:, owned] for slot in range(3)], axis=1)
            np.testing.assert_array_equal(getattr(dataset, name).numpy(), expected)


def test_a_slot_with_a_row_that_was_never_written_is_refused() -> None:
    slots = empty_slots(2, 3)
    slots.valid[:] = True

    def require_written(slot: int) -> None:
        if slot == 1:
            raise SlotStateError("reward of row 2 was never written")

    slots.require_written = require_written
    rows = PolicyRows(0, slots, 3, 3, None, NO_LIMIT)
    assert rows.add(0)
    with pytest.raises(SlotStateError, match="never written"):
        rows.add(1)
    assert rows.take(0) is not None
    rows.release()
    assert rows.take(0) is None, "nothing of the refused slot was copied"


def test_a_slot_waits_as_a_whole_until_there_is_room() -> None:
    slots = empty_slots(9, 2)
    draw_episodes(slots, np.random.default_rng(3), 1, 0.1)
    rows = PolicyRows(0, slots, 3, 3, None, NO_LIMIT)
    num_added = 0
    while rows.add(num_added):
        num_added += 1
    assert num_added == 4 * 3 // 2
    before = [{name: array.copy() for name, array in staging.fields.items()} for staging in rows._staging]
    assert not rows.add(num_added)
    for staging, fields_before in zip(rows._staging, before, strict=True):
        for name, array in staging.fields.items():
            np.testing.assert_array_equal(array, fields_before[name])
    assert rows.take(8) is not None
    assert not rows.add(num_added), "the dataset is being trained on"
    with pytest.raises(RuntimeError, match="before the previous one was released"):
        rows.take(8)
    rows.release()
    assert rows.add(num_added)


def test_an_iteration_has_the_columns_that_its_rows_need() -> None:
    slots = empty_slots(2, 3)
    draw_episodes(slots, np.random.default_rng(0), 1, 0.0)
    slots.policy_idx[:] = 1
    slots.policy_idx[0, :, 2] = slots.policy_idx[1, 5:, 0] = 0
    rows = PolicyRows(0, slots, None, 1, None, NO_LIMIT)
    for _ in range(2):
        assert rows.add(0)
        assert rows.take(8) is None
        assert rows.add(1)
        rows.complete()
        dataset = rows.take(8)
        assert dataset is not None and dataset.valid.sum(0).tolist() == [T, 3]
        assert dataset.valid[:3, 1].all()
        assert dataset.truncated[:, 1].nonzero().tolist() == [[2]]
        assert dataset.value[3, 1] == slots.value[1, T, 0]
        rows.release()
    rows.complete()
    dataset = rows.take(8)
    assert dataset is not None and dataset.valid.shape == (T, 0)


def test_rows_that_are_too_old_are_dropped_with_the_rest_of_their_episode() -> None:
    slots = empty_slots(1, 3)
    slots.valid[:] = True
    slots.value[:] = 1.0
    slots.terminated[0, 3, 0] = True
    slots.policy_version[0] = np.array([2, 2, 5, 5, 5, 5, 6, 6, 6])[:, None]
    slots.policy_version[0, 6, 1] = 1
    slots.policy_version[0, :3, 2] = [4, 5, 5]
    began = time.monotonic()
    slots.chosen_at[:] = began - 10.0
    rows = PolicyRows(0, slots, 3, 1, None, max_policy_lag=4, steady_lag_bound=2)
    assert rows.add(0)
    dataset = rows.take(8)
    assert dataset is not None
    assert dataset.valid[:, 0].tolist() == [False] * 4 + [True] * 4
    assert not dataset.valid[:, 1].any()
    assert dataset.valid[:, 2].all()
    assert rows.dropped_samples == 4 + 8
    assert dataset.policy_version.tolist()[3] == [8, 8, 5], "rows that are not trained on have a known version"
    lag = rows.lag(8)  # 1 sample of version 4, 7 of version 5, 4 of version 6
    assert lag.mean == pytest.approx((1 * 4 + 7 * 3 + 4 * 2) / 12)
    assert (lag.max, lag.over_bound) == (4, pytest.approx(8 / 12))
    assert 10_000.0 - 1.0 <= lag.age_ms <= 1000.0 * (time.monotonic() - began + 10.0) + 1.0
    # One old row among newer ones ends what comes before it with the value of its observation.
    slots.policy_version[:] = 6
    slots.policy_version[0, 4, 1] = 1
    rows.release()
    assert rows.add(0)
    dataset = rows.take(8)
    assert dataset is not None
    assert dataset.valid[:, 1].tolist() == [True] * 4 + [False] * 4
    assert dataset.truncated[:, 1].nonzero().tolist() == [[3]]


@pytest.mark.parametrize("recurrence", [2, 8])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_first_ratio_of_a_recurrent_policy_is_one(kind: str, recurrence: int) -> None:
    config = TrainConfig(
        use_rnn=True, rnn_type=kind, rnn_size=4, rollout=T, recurrence=recurrence, num_batches_per_epoch=1,
        num_epochs=1, learning_rate=0.0, batch_size=8, encoder_mlp_layers=[8], with_vtrace=True,
        ppo_objective="clip", normalize_input=True,
    )  # fmt: skip
    model = with_values(ActorCritic(BOX, config))
    learner = OnPolicyLearner(model, config, CPU)
    learner.publication()
    random = np.random.default_rng(1)
    slots = empty_slots(8, 4, rnn_state_size=model.rnn_state_size)
    draw_episodes(slots, random, 2, 0.15)
    slots.obs[:] = random.normal(size=slots.obs.shape)
    slots.rnn_state[:, 0] = random.normal(size=slots.rnn_state[:, 0].shape)
    generator = torch.Generator().manual_seed(0)
    for slot, row in np.ndindex(8, T):
        state = torch.from_numpy(slots.rnn_state[slot, row])
        acted = model.act(torch.from_numpy(slots.obs[slot, row]), generator, state)
        for name in ("action", "log_prob", "value", "action_parameters"):
            getattr(slots, name)[slot, row] = getattr(acted, name).numpy()
        slots.rnn_state[slot, row + 1] = acted.rnn_state.numpy()
        slots.rnn_state[slot, row + 1][slots.terminated[slot, row] | ~slots.valid[slot, row]] = 0.0
    slots.policy_version[:] = 0
    datasets = collect(PolicyRows(1, slots, 6, 2, recurrence, NO_LIMIT), slots, version=0)
    assert len(datasets) > 1
    state = learner.state_dict()
    for dataset in datasets:
        log_ratios = learner._prepare(dataset).log_ratios
        assert log_ratios is not None and log_ratios[dataset.valid].abs().max() < 1e-5
        learner.load_state_dict(state)  # with the statistics of observations from before
        learner.publication()
        metrics = train_on(learner, dataset)
        assert metrics is not None and metrics.max_ratio_deviation_first_batch < 1e-5
        learner.load_state_dict(state)
        learner.publication()
