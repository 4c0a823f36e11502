"""Whose turn it is, and what a dataset is made of."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from small_runs import fill, planned, small_arena

from asyncrl.buffers.slots import SlotState, TrajectorySlots
from asyncrl.config.plan import ResourcePlan
from asyncrl.learner.slot_ledger import Columns, SlotLedger


class Book:
    """A ledger, its slots, and splits that fill a slot in no time when told to."""

    def __init__(self, **settings: Any) -> None:
        self.plan: ResourcePlan = planned(**settings)
        self.slots: TrajectorySlots = small_arena(self.plan)[1]
        self.copied: list[tuple[str, int, SlotState]] = []  # what copies of the slots are told, and in which state
        self.ledger = SlotLedger(
            self.slots, self.plan, SimpleNamespace(start_copy=self.start, wait_for_copy=self.wait_for_copy)
        )
        self.granted: list[tuple[int, int]] = []

    def start(self, slot: int) -> None:
        self.copied.append(("start", slot, self.slots.state(slot)))

    def wait_for_copy(self, slot: int) -> None:
        self.copied.append(("wait_for_copy", slot, self.slots.state(slot)))

    def grant(self) -> list[tuple[int, int]]:
        grants = self.ledger.grant()
        self.granted += grants
        return grants

    def hand_over(self, split_idx: int, version: int = 0) -> int:
        """The split fills the slot it was granted first, and hands it over."""
        position = [split for split, _ in self.granted].index(split_idx)
        _, slot = self.granted.pop(position)
        fill(self.slots, slot, version)
        self.slots.finish(slot, split_idx)
        self.ledger.add_ready(slot)
        return slot

    def states(self) -> list[SlotState]:
        return [self.slots.state(slot) for slot in range(self.slots.num_slots)]


def sync_book() -> Book:
    # 2 splits of 2 environments; 8 columns are 4 slots.
    return Book(async_rl=False, num_workers=2, num_envs_per_worker=2, batch_size=16)


def test_sync_grants_all_slots_together_and_equally() -> None:
    book = sync_book()
    grants = book.grant()
    assert [split_idx for split_idx, _ in grants] == [0, 0, 1, 1]
    assert sorted(slot for _, slot in grants) == [0, 1, 2, 3]
    assert book.grant() == []


def test_sync_grants_nothing_before_the_whole_dataset_was_trained_on() -> None:
    book = sync_book()
    book.grant()
    for split_idx in (0, 0, 1):
        book.hand_over(split_idx)
        assert book.ledger.take_dataset(0) is None
        assert book.grant() == []
    book.hand_over(1)
    columns = book.ledger.take_dataset(0)
    assert columns is not None
    assert len(columns) == 4
    assert book.grant() == []
    book.ledger.release(columns[:3])
    assert book.grant() == []
    book.ledger.release(columns[3:])
    assert [split_idx for split_idx, _ in book.grant()] == [0, 0, 1, 1]


def test_in_sync_slots_that_are_dropped_are_filled_again() -> None:
    """Weights of another run were taken over when each split had filled the first of its two slots."""
    book = sync_book()
    book.grant()
    jump = book.plan.max_policy_lag + 1
    old = [book.hand_over(split_idx) for split_idx in (0, 1)]
    for split_idx in (0, 1):
        book.hand_over(split_idx, jump)
    assert book.ledger.take_dataset(jump) is None
    assert sorted(book.grant()) == list(zip((0, 1), old, strict=True))
    assert book.grant() == [] and book.ledger.take_dataset(jump) is None
    for split_idx in (0, 1):
        book.hand_over(split_idx, jump)
    columns = book.ledger.take_dataset(jump)
    assert columns is not None and len(columns) == 4
    assert book.ledger.dropped_samples == 2 * book.plan.rollout * 2
    book.ledger.release(columns)
    assert [split_idx for split_idx, _ in book.grant()] == [0, 0, 1, 1]


def test_with_a_fixed_lag_a_dataset_is_collected_as_a_whole_when_the_learner_says_so() -> None:
    # 2 splits of 2 environments; 8 columns are 4 slots, and there are 8.
    book = Book(fixed_lag=True, num_workers=2, num_envs_per_worker=2, batch_size=16)
    assert book.slots.num_slots == 8
    for _ in range(5):
        grants = book.grant()
        assert [split_idx for split_idx, _ in grants] == [0, 0, 1, 1]
        for split_idx in (1, 0, 1):
            book.hand_over(split_idx)
            assert book.ledger.take_dataset(0) is None
            assert book.grant() == []
        book.hand_over(0)
        assert book.grant() == []
        columns = book.ledger.take_dataset(0)
        assert columns is not None
        assert [part.slot for part in columns] == sorted(slot for _, slot in grants), "whoever was first"
        assert book.grant() == []
        book.ledger.begin_dataset()
        following = book.grant()  # while these columns are trained
        assert [split_idx for split_idx, _ in following] == [0, 0, 1, 1]
        assert not {slot for _, slot in following} & {part.slot for part in columns}
        for split_idx in (0, 0, 1, 1):
            book.hand_over(split_idx)
        book.ledger.release(columns)
        assert book.grant() == []
        last = book.ledger.take_dataset(0)
        assert last is not None
        book.ledger.begin_dataset()
        book.ledger.release(last)


def async_book(num_batches_to_accumulate: int = 1, **settings: Any) -> Book:
    # 3 splits of 2 environments; 4 columns are 2 slots.
    shape = {"num_workers": 3, "num_envs_per_worker": 2, "batch_size": 8}
    return Book(num_batches_to_accumulate=num_batches_to_accumulate, **{**shape, **settings})


def test_async_gives_a_free_slot_to_whichever_split_has_none() -> None:
    book = async_book()
    assert [split_idx for split_idx, _ in book.grant()] == [0, 1, 2]
    assert book.grant() == []
    book.hand_over(1)
    assert [split_idx for split_idx, _ in book.grant()] == [1]
    first = book.hand_over(2)
    book.hand_over(1)
    assert [split_idx for split_idx, _ in book.grant()] == [2]
    columns = book.ledger.take_dataset(0)
    assert columns is not None
    book.ledger.release(columns)
    freed = {part.slot for part in columns}
    assert first in freed
    (next_grant,) = book.grant()
    assert next_grant[0] == 1
    assert next_grant[1] in freed


@pytest.mark.parametrize("num_batches_to_accumulate", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [8, 10, 14])
def test_collecting_stops_when_the_datasets_allowed_wait_and_every_split_has_filled_one_more(
    num_batches_to_accumulate: int, batch_size: int
) -> None:
    book = async_book(num_batches_to_accumulate, batch_size=batch_size)
    num_filled = 0
    while book.grant():
        for split_idx in [split for split, _ in book.granted]:
            book.hand_over(split_idx)
            num_filled += 1
    slots_per_dataset = batch_size // 2 / 2
    assert num_filled == math.ceil(num_batches_to_accumulate * slots_per_dataset) + 3
    columns = book.ledger.take_dataset(0)
    assert columns is not None
    assert book.grant() == []
    book.ledger.release(columns)
    assert len(book.grant()) == sum(part.is_last for part in columns)


def test_a_slow_split_holds_up_nobody() -> None:
    book = async_book()
    book.grant()
    for _ in range(20):
        used = [book.hand_over(0), book.hand_over(1)]
        columns = book.ledger.take_dataset(0)
        assert columns is not None
        assert [part.slot for part in columns] == used
        book.ledger.release(columns)
        assert sorted(split_idx for split_idx, _ in book.grant()) == [0, 1]
    assert sum(split_idx == 2 for split_idx, _ in book.granted) == 1


def test_columns_cross_datasets_where_a_dataset_is_no_whole_number_of_slots() -> None:
    # One split of 4 environments; 6 columns are a slot and a half.
    book = Book(num_workers=1, num_envs_per_worker=4, batch_size=12)
    book.grant()
    slots = []
    for _ in range(2):
        slots.append(book.hand_over(0))
        book.grant()
    first = book.ledger.take_dataset(0)
    assert first == [Columns(slots[0], 0, 4, is_last=True), Columns(slots[1], 0, 2, is_last=False)]
    book.ledger.release(first)
    assert book.slots.state(slots[0]) == SlotState.FREE
    assert book.slots.state(slots[1]) == SlotState.TRAINING
    assert book.ledger.take_dataset(0) is None
    slots.append(book.hand_over(0))
    second = book.ledger.take_dataset(0)
    assert second == [Columns(slots[1], 2, 4, is_last=True), Columns(slots[2], 0, 4, is_last=True)]
    book.ledger.release(second)
    assert book.slots.state(slots[1]) == book.slots.state(slots[2]) == SlotState.FREE
    assert len(book.ledger.ready) == 0


def test_a_slot_wider_than_a_dataset_serves_several() -> None:
    book = Book(num_workers=1, num_envs_per_worker=4, batch_size=2)
    book.grant()
    slot = book.hand_over(0)
    parts = []
    for _ in range(4):
        columns = book.ledger.take_dataset(0)
        assert columns is not None
        parts += columns
        book.ledger.release(columns)
    assert parts == [Columns(slot, column, column + 1, is_last=column == 3) for column in range(4)]
    assert book.slots.state(slot) == SlotState.FREE


def test_only_slots_with_a_sample_older_than_allowed_are_dropped_and_collected_anew() -> None:
    book = async_book(max_policy_lag=10, num_batches_to_accumulate=2)
    book.grant()
    old, young, mixed = book.hand_over(0, version=4), book.hand_over(1, version=5), book.hand_over(2, version=9)
    book.slots.policy_version[mixed, 1] = 4
    book.slots.policy_version[young, -1] = 4  # the row after the last step is not a sample
    book.slots.valid[old, 1, 0] = False
    assert book.ledger.take_dataset(learner_version=15) is None
    assert book.ledger.dropped_samples == 3 + 4
    assert [book.slots.state(slot) for slot in (old, young, mixed)] == [
        SlotState.FREE,
        SlotState.READY,
        SlotState.FREE,
    ]
    assert [split_idx for split_idx, _ in book.grant()] == [0, 1, 2]
    other = book.hand_over(2, version=15)
    columns = book.ledger.take_dataset(learner_version=15)
    assert columns is not None
    assert [part.slot for part in columns] == [young, other]


def test_of_a_partly_used_slot_that_grew_old_only_what_was_left_counts_as_dropped() -> None:
    book = Book(num_workers=1, num_envs_per_worker=4, batch_size=12, max_policy_lag=10)
    book.grant()
    slots = [book.hand_over(0, version=0)]
    book.grant()
    slots.append(book.hand_over(0, version=0))
    book.grant()
    columns = book.ledger.take_dataset(learner_version=0)
    assert columns is not None
    book.ledger.release(columns)
    slots.append(book.hand_over(0, version=20))
    book.grant()
    book.slots.valid[slots[1], 0, 0] = False  # in a column that was used
    assert book.ledger.take_dataset(learner_version=20) is None
    assert book.ledger.dropped_samples == 2 * 2
    assert book.slots.state(slots[1]) == SlotState.FREE
    slots.append(book.hand_over(0, version=20))
    assert book.ledger.take_dataset(learner_version=20) == [
        Columns(slots[2], 0, 4, is_last=True),
        Columns(slots[3], 0, 2, is_last=False),
    ]


def test_a_slot_is_copied_when_it_is_ready_and_its_copy_ends_before_it_is_freed() -> None:
    book = Book(batch_size=4, num_workers=2, num_envs_per_worker=1, max_policy_lag=10)
    book.grant()
    one, other = book.hand_over(0), book.hand_over(1)
    columns = book.ledger.take_dataset(0)
    assert columns is not None
    assert book.copied == [("start", one, SlotState.READY), ("start", other, SlotState.READY)]
    book.ledger.release(columns)
    assert book.copied[2:] == [("wait_for_copy", one, SlotState.TRAINING), ("wait_for_copy", other, SlotState.TRAINING)]

    (split_idx, slot), _ = book.grant()  # whose number is lost with its worker, and which is too old
    fill(book.slots, slot, version=0)
    book.slots.finish(slot, split_idx)
    book.ledger.reclaim([split_idx])
    assert book.copied[4:] == [("start", slot, SlotState.READY)]
    assert book.ledger.take_dataset(learner_version=11) is None
    assert book.copied[5:] == [("wait_for_copy", slot, SlotState.TRAINING)]


# accumulate, workers, splits, environments of a worker, samples in a dataset (2 steps a trajectory)
SHAPES = [
    (1, 2, 1, 4, 16),
    (1, 2, 2, 4, 16),
    (1, 4, 1, 2, 16),
    (2, 2, 1, 4, 16),
    (3, 3, 1, 3, 18),
    (1, 3, 1, 3, 10),
    (2, 3, 1, 5, 14),
    (1, 1, 1, 4, 32),
    (1, 2, 1, 8, 8),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("train_ticks", [1, 10, 35])
def test_at_equal_pace_no_lag_exceeds_the_plans_bound(shape: tuple[int, ...], train_ticks: int) -> None:
    accumulate, workers, splits, envs, samples = shape
    book = Book(
        num_batches_to_accumulate=accumulate,
        num_workers=workers,
        worker_num_splits=splits,
        num_envs_per_worker=envs,
        inference_mode="central" if splits > 1 else "local",
        batch_size=samples // 2,
        num_batches_per_epoch=2,
    )
    lags = simulated_lags(book, train_ticks)
    assert 0 < max(lags) <= book.plan.steady_lag_bound
    if accumulate == 1 and book.plan.slots_per_dataset == book.plan.num_splits:
        assert book.plan.steady_lag_bound == book.plan.updates_per_dataset
        assert set(lags[2 * book.plan.num_splits :]) == {book.plan.updates_per_dataset}


def simulated_lags(book: Book, train_ticks: int, fill_ticks: int = 10) -> list[int]:
    """Lags at first use of 15 datasets: splits fill a slot in equal time; weights appear after each dataset."""
    version, lags, training_until = 0, [], -1
    full_at: dict[int, int] = {}
    version_of: dict[int, int] = {}
    columns: list[Columns] | None = None
    for tick in range(100_000):
        for split_idx in [split_idx for split_idx, when in full_at.items() if when == tick]:
            del full_at[split_idx]
            book.hand_over(split_idx, version_of[split_idx])
        if columns is not None and tick == training_until:
            version += book.plan.updates_per_dataset
            book.ledger.release(columns)
            columns = None
        for split_idx, _ in book.grant():
            full_at[split_idx], version_of[split_idx] = tick + fill_ticks, version
        if columns is None:
            columns = book.ledger.take_dataset(version)
            if columns is not None:
                training_until = tick + train_ticks
                lags += [version - int(book.slots.policy_version[part.slot, 0]) for part in columns]
        if version == 15 * book.plan.updates_per_dataset:
            return lags
    raise AssertionError("the simulated run stood still")
