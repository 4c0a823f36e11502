"""A slot has one owner at a time, and rows that nobody wrote are noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_runs import fill, planned, small_arena

from asyncrl.buffers.slots import NOBODY, SlotState, SlotStateError, TrajectorySlots

SLOT, SPLIT = 1, 0
TRANSITIONS: dict[str, tuple[SlotState, SlotState, Callable[[TrajectorySlots], None]]] = {
    "grant": (SlotState.FREE, SlotState.FILLING, lambda slots: slots.grant(SLOT, SPLIT)),
    "finish": (SlotState.FILLING, SlotState.READY, lambda slots: slots.finish(SLOT, SPLIT)),
    "take": (SlotState.READY, SlotState.TRAINING, lambda slots: slots.take(SLOT)),
    "free": (SlotState.TRAINING, SlotState.FREE, lambda slots: slots.free(SLOT)),
}


@pytest.fixture
def slots() -> TrajectorySlots:
    plan = planned(batch_size=8, num_workers=1, num_envs_per_worker=2)
    return small_arena(plan)[1]


def bring_to(slots: TrajectorySlots, state: SlotState) -> None:
    for name in ("grant", "finish", "take"):
        if slots.state(SLOT) == state:
            return
        TRANSITIONS[name][2](slots)
        if name == "grant":
            fill(slots, SLOT)


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("state", SlotState)
def test_only_the_owner_may_move_a_slot_on(slots: TrajectorySlots, name: str, state: SlotState) -> None:
    before, after, move = TRANSITIONS[name]
    bring_to(slots, state)
    if state == before:
        move(slots)
        assert slots.state(SLOT) == after
        return
    owner = slots.owner[SLOT]
    with pytest.raises(SlotStateError, match=f"slot 1 is {state.name}, expected {before.name}"):
        move(slots)
    assert (slots.state(SLOT), slots.owner[SLOT]) == (state, owner)


def test_a_slot_belongs_to_the_split_it_was_granted_to(slots: TrajectorySlots) -> None:
    assert slots.owner[SLOT] == NOBODY
    slots.grant(SLOT, 3)
    with pytest.raises(SlotStateError, match="belongs to split 3, not to split 0"):
        slots.finish(SLOT, 0)
    assert slots.state(SLOT) == SlotState.FILLING
    fill(slots, SLOT)
    slots.finish(SLOT, 3)
    slots.take(SLOT)
    slots.free(SLOT)
    assert slots.owner[SLOT] == NOBODY


@pytest.mark.parametrize("name", ["value", "log_prob", "reward"])
def test_one_number_that_was_not_written_is_named(slots: TrajectorySlots, name: str) -> None:
    poison = getattr(slots, name)[SLOT, -1, 1].copy()
    bring_to(slots, SlotState.READY)
    row = getattr(slots, name).shape[1] - 1
    getattr(slots, name)[SLOT, row, 1] = poison
    with pytest.raises(SlotStateError, match=f"slot 1 of split 0: {name} of row {row}, environment 1"):
        slots.take(SLOT)
    assert slots.state(SLOT) == SlotState.READY


def test_rows_of_an_earlier_use_of_a_slot_do_not_count_as_written(slots: TrajectorySlots) -> None:
    bring_to(slots, SlotState.TRAINING)
    slots.free(SLOT)
    slots.grant(SLOT, SPLIT)
    slots.finish(SLOT, SPLIT)
    with pytest.raises(SlotStateError, match="never written"):
        slots.take(SLOT)
    others = [slot for slot in range(slots.num_slots) if slot != SLOT]
    assert np.isnan(slots.value[others]).all()
    assert {slots.state(slot) for slot in others} == {SlotState.FREE}


def test_slots_tell_where_episodes_begin() -> None:
    _, slots = small_arena(planned(rollout=4, batch_size=8, num_workers=1, num_envs_per_worker=2))
    slots.grant(1, 0)
    slots.valid[1], slots.terminated[1], slots.truncated[1] = True, False, False
    slots.terminated[1, 0, 0] = slots.truncated[1, 3, 0] = True
    slots.valid[1, 1, 0] = False
    found = [slots.beginnings((1, row)) for row in range(5)]
    assert [each.split_idx for each in found] == [0] * 5
    assert [each.begins.tolist() for each in found] == [
        [False, False],
        [True, False],
        [True, False],
        [False, False],
        [True, False],  # the reset observation is in the first row of the next slot
    ]
    assert [each.takes_action for each in found] == [True] * 4 + [False]
