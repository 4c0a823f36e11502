"""Splits take turns, ask before they step, and hand over what is full."""

from __future__ import annotations

import pytest
from small_runs import BOX, CountingWaker, FakeActions, ScriptedEnv, planned, small_arena

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing
from asyncrl.buffers.slots import SlotState, SlotStateError
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.sinks import GrantedSlots, SlotSink
from asyncrl.rollout.worker import WAIT_S, RolloutWorker, Split

ROLLOUT = 2


class Worker:
    """Worker 1 of 2 with splits 2 and 3 of one environment each, and all that it talks to."""

    def __init__(self, answers_at_once: bool = False) -> None:
        plan = planned(
            rollout=ROLLOUT,
            batch_size=8,
            num_workers=2,
            num_envs_per_worker=2,
            worker_num_splits=2,
            inference_mode="central",
        )
        self.arena, self.slots = small_arena(plan)
        self.actions = FakeActions(self.slots, at_once=answers_at_once)
        self.envs = {split_idx: ScriptedEnv([(1.0, 1.0, False, False)] * 20) for split_idx in (2, 3)}
        self.granted, self.ready = IndexRing(self.arena, "granted.1"), IndexRing(self.arena, "ready.1")
        self.learner, self.control = CountingWaker(), RunControl(self.arena, 2)
        source = GrantedSlots(self.slots, self.granted, self.ready, self.learner)
        groups = [EnvGroup([env], [0], split_idx, BOX, "raw") for split_idx, env in self.envs.items()]
        self.splits = {
            split_idx: Split(split_idx, group, SlotSink(split_idx, group, self.slots, source), self.actions)
            for split_idx, group in zip(self.envs, groups, strict=True)
        }
        self.worker = RolloutWorker(1, list(self.splits.values()), self.control)

    def grant(self, slot: int, split_idx: int) -> None:
        self.slots.grant(slot, split_idx)
        self.granted.push(slot)

    def steps(self) -> dict[int, int]:
        return {split_idx: len(env.taken) for split_idx, env in self.envs.items()}


def test_one_split_steps_while_the_other_waits_for_its_actions() -> None:
    run = Worker()
    assert run.worker.poll() == WAIT_S, "without a slot it asks for nothing"
    assert run.actions.asked == []
    run.grant(5, split_idx=3)
    run.grant(0, split_idx=2)
    assert run.worker.poll() == 0.0
    assert sorted(run.actions.asked) == [(2, 0, 0), (3, 5, 0)]
    assert run.worker.poll() == WAIT_S
    assert run.steps() == {2: 0, 3: 0}

    run.actions.answer(3)
    assert run.worker.poll() == 0.0
    assert run.steps() == {2: 0, 3: 1}
    assert run.actions.asked[-1] == (3, 5, 1)
    assert run.worker.poll() == WAIT_S

    run.actions.answer(2)
    run.worker.poll()
    assert run.steps() == {2: 1, 3: 1}


def test_a_slot_is_handed_over_when_its_last_row_has_a_value_and_not_before() -> None:
    run = Worker()
    run.grant(4, split_idx=2)
    run.worker.poll()
    for _ in range(ROLLOUT):
        run.actions.answer(2)
        run.worker.poll()
    assert run.actions.asked[-1] == (2, 4, ROLLOUT)
    assert run.worker.poll() == WAIT_S
    assert (run.slots.state(4), run.ready.pop_all(), run.learner.count) == (SlotState.FILLING, [], 0)
    run.actions.answer(2)
    run.worker.poll()
    assert (run.slots.state(4), run.ready.pop_all(), run.learner.count) == (SlotState.READY, [4], 1)
    run.slots.take(4)
    assert run.splits[2].place is None


def test_slots_granted_together_are_filled_one_after_the_other() -> None:
    run = Worker(answers_at_once=True)
    for slot, split_idx in ((6, 2), (1, 3), (0, 2), (7, 3)):
        run.grant(slot, split_idx)
    while run.worker.poll() == 0.0:
        pass
    handed_over = run.ready.pop_all()
    assert [slot for slot in handed_over if slot in (6, 0)] == [6, 0]
    assert [slot for slot in handed_over if slot in (1, 7)] == [1, 7]
    assert run.learner.count == 4
    assert run.control.collected_steps(1) == 2 * 2 * ROLLOUT == run.worker.report().env_steps
    assert run.control.collected_steps(0) == 0
    assert run.control.first_step_at is not None


def test_a_split_that_lost_its_slot_cannot_hand_it_over() -> None:
    run = Worker(answers_at_once=True)
    run.grant(0, split_idx=2)
    for _ in range(1 + ROLLOUT):
        run.worker.poll()
    run.slots.finish(0, 2)
    with pytest.raises(SlotStateError, match="slot 0 is READY, expected FILLING"):
        run.worker.poll()
