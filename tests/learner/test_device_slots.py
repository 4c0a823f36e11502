"""Slots are read from the moment they are ready until they are freed, and no longer."""

from __future__ import annotations

from small_runs import fill, planned, small_arena

from asyncrl.buffers.slots import SlotState
from asyncrl.learner.slot_ledger import SlotLedger


class Reader:
    """Notes what it is told, and in which state each slot was then."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.told: list[tuple[str, int, SlotState]] = []

    def start_copy(self, slot: int) -> None:
        self.told.append(("start", slot, self.run.slots.state(slot)))

    def settle(self, slot: int) -> None:
        self.told.append(("settle", slot, self.run.slots.state(slot)))


class Run:
    def __init__(self) -> None:
        plan = planned(batch_size=4, num_workers=2, num_envs_per_worker=1, max_policy_lag=10)
        _, self.slots = small_arena(plan)
        self.reader = Reader(self)
        self.ledger = SlotLedger(self.slots, plan, self.reader)

    def hand_over(self, split_idx: int, slot: int, version: int = 0) -> None:
        fill(self.slots, slot, version)
        self.slots.finish(slot, split_idx)
        self.ledger.add_ready(slot)


def test_a_slot_is_copied_when_it_is_ready_and_settled_before_it_is_freed() -> None:
    run = Run()
    (first, one), (second, other) = run.ledger.grant()
    run.hand_over(first, one)
    run.hand_over(second, other)
    assert run.reader.told == [("start", one, SlotState.READY), ("start", other, SlotState.READY)]
    run.reader.told.clear()
    columns = run.ledger.take_dataset(0)
    assert columns is not None and run.reader.told == []
    run.ledger.release(columns)
    assert run.reader.told == [("settle", one, SlotState.TRAINING), ("settle", other, SlotState.TRAINING)]


def test_a_slot_that_is_too_old_is_settled_before_it_is_freed() -> None:
    run = Run()
    grants = run.ledger.grant()
    run.hand_over(*grants[0])
    run.reader.told.clear()
    assert run.ledger.take_dataset(learner_version=11) is None
    assert run.reader.told == [("settle", grants[0][1], SlotState.TRAINING)]


def test_a_slot_whose_news_was_lost_with_its_worker_is_copied_too() -> None:
    run = Run()
    split_idx, slot = run.ledger.grant()[0]
    fill(run.slots, slot)
    run.slots.finish(slot, split_idx)
    run.ledger.take_over([split_idx])
    assert run.reader.told == [("start", slot, SlotState.READY)]
