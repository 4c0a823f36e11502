"""Slots as a pool has them: packed byte for byte, granted with new enough weights, joined while they wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_runs import BOX, CountingWaker, fill, planned, small_arena

from asyncrl.buffers.slots import SlotState, SlotStateError
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.ray_pools import sent_slots
from asyncrl.contrib.ray_pools.sent_slots import PermitLedger, SlotSender, slot_record
from asyncrl.learner.slot_ledger import SlotLedger
from asyncrl.run.setup import RunSetup


def remote(**settings: object) -> ResourcePlan:
    base = {"cluster": "ray", "num_remote_hosts": 2, "num_envs_per_worker": 1, "batch_size": 4}
    return planned(**{**base, **settings})


def test_a_slot_arrives_with_every_array_but_its_state_and_owner() -> None:
    plan = remote(use_rnn=True, rnn_size=3)
    (there, sent), (here, received) = small_arena(plan), small_arena(plan)
    random = np.random.default_rng(1)
    arrays = [spec.name for spec in there.specs if spec.name.startswith("slots.")]
    for name in arrays:
        array = there.array(name)
        array[1] = random.integers(0, 2, array[1].shape).astype(array.dtype) if array.dtype == bool else 7.25
    received.grant(0, 1)
    received.grant(1, 0)
    here_, there_ = (RunSetup(TrainConfig(cluster="ray"), plan, BOX, arena, Path(), None, 0) for arena in (here, there))
    record = slot_record(there_)
    record.pack(1, content := np.empty(record.num_bytes, np.uint8))
    slot_record(here_).unpack(content, 1)
    words = {"slots.state", "slots.owner"}
    assert {name for name in arrays if not np.array_equal(there.array(name)[1], here.array(name)[1])} == words
    assert (received.state(1), received.owner[1]) == (SlotState.FILLING, 0)
    assert np.isnan(received.reward[0]).all(), "the slot beside it is untouched"
    assert len(arrays) >= 14 and sent.is_recurrent


def test_a_slot_waits_for_the_weights_that_its_permit_names() -> None:
    plan = remote()
    arena, slots = small_arena(plan)
    setup = RunSetup(TrainConfig(cluster="ray"), plan, BOX, arena, Path(), None, 0)
    sender = SlotSender(setup, CountingWaker(), {}, None)
    sender.permit(4, [(1, 0)])
    sender.permit(3, [(0, 1)])
    for number, states in ((3, [SlotState.FREE, SlotState.FILLING]), (5, [SlotState.FILLING] * 2)):
        sender.record_publication(number)
        assert sender.take(0.0) is None
        assert [slots.state(slot) for slot in range(2)] == states
    assert [slots.owner[slot] for slot in range(2)] == [1, 0]


def test_ready_slots_are_joined_up_to_the_size_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = remote(num_batches_to_accumulate=4)
    _, slots = small_arena(plan)
    monkeypatch.setattr(sent_slots, "BATCH_BYTES", 250)
    ledger = PermitLedger(slots, plan, slot_bytes=100)
    ledger.permits.extend((slot % 2, slot) for slot in range(5))
    for split_idx, slot in ledger.grant():
        fill(slots, slot)
        slots.finish(slot, split_idx)
        ledger.add_ready(slot)
    taken = []
    while (columns := ledger.take_dataset(0)) is not None:
        taken.append([part.slot for part in columns])
        ledger.release(columns)
    assert taken == [[0, 1], [2, 3], [4]]
    assert {slots.state(slot) for slot in range(5)} == {SlotState.FREE}


def test_a_slot_with_a_row_that_was_never_written_is_not_sent() -> None:
    plan = remote()
    _, slots = small_arena(plan)
    ledger = PermitLedger(slots, plan, slot_bytes=100)
    ledger.permits.append((0, 0))
    ledger.grant()
    fill(slots, 0)
    slots.reward[0, 1] = np.nan
    slots.finish(0, 0)
    ledger.add_ready(0)
    with pytest.raises(SlotStateError, match="reward of row 1"):
        ledger.take_dataset(0)


def test_remote_splits_are_granted_one_slot_ahead_in_async_and_none_in_sync() -> None:
    plan = remote(num_workers=1, remote_slots_in_flight=3, batch_size=6)
    assert (plan.num_workers, plan.num_local_workers) == (3, 1)
    assert [list(plan.workers_of_pool(pool)) for pool in range(2)] == [[1], [2]]
    ledger = SlotLedger(small_arena(plan)[1], plan)
    granted = [split_idx for split_idx, _ in ledger.grant()]
    assert [granted.count(split_idx) for split_idx in range(3)] == [1, 3, 3]
    assert plan.num_slots == 3 + 3 + 4
    sync = remote(num_workers=1, async_rl=False, batch_size=6)
    assert len(SlotLedger(small_arena(sync)[1], sync).grant()) == sync.num_slots == 3


def test_the_process_of_a_pool_needs_no_torch() -> None:
    code = "import sys, asyncrl.contrib.ray_pools.pool; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
