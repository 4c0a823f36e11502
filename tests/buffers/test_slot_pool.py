"""A split's own slots: filled in turn, free when every policy has taken them, safe whenever a worker dies."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from mortal_arena import Life, MortalArena, MortalRun
from policy_envs import Episodes, MarkingPolicies, NumberedEpisodes, check_rows
from small_runs import BOX, CountingWaker, fill, planned, small_arena

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing, RequestTable
from asyncrl.buffers.slot_pool import SlotPool
from asyncrl.buffers.slots import SlotState, SlotStateError, TrajectorySlots
from asyncrl.config.plan import ResourcePlan
from asyncrl.config.schema import TrainConfig
from asyncrl.rollout.env_group import EnvGroup
from asyncrl.rollout.failures import FailureLog, Recovery
from asyncrl.rollout.policy_mapping import SINGLE_AGENT, PolicyMapping
from asyncrl.rollout.sinks import PooledSlots, SlotSink
from asyncrl.rollout.worker import LocalActions, RemoteActions, RolloutWorker, Split

NUM_WORKERS, SPLITS, ENVS, ROLLOUT, NUM_POLICIES = 2, 2, 2, 3, 2
NUM_TAKEN = 16


def plan_of(async_rl: bool, inference_mode: str = "local") -> ResourcePlan:
    sizes = {"rollout": ROLLOUT, "batch_size": 24, "num_workers": NUM_WORKERS, "num_envs_per_worker": SPLITS * ENVS}
    plan = planned(async_rl=async_rl, worker_num_splits=SPLITS, inference_mode=inference_mode, **sizes)
    return dataclasses.replace(plan, num_policies=NUM_POLICIES)


class Pool:
    """The pool of split 1, and what its worker and the policies do with it."""

    def __init__(self) -> None:
        self.plan = plan_of(async_rl=True)
        self.arena, self.slots = small_arena(self.plan)
        self.pool = SlotPool(self.arena, self.slots, self.plan, split_idx=1)
        self.ready = [IndexRing(self.arena, f"policy.{policy}.ready.0") for policy in range(NUM_POLICIES)]

    def complete(self) -> int | None:
        slot = self.pool.find_free()
        if slot is not None:
            self.slots.refill(slot, 1)
            fill(self.slots, slot)
            self.slots.finish(slot, 1)
        return slot

    def take(self, policy: int, slot: int) -> None:
        self.arena.words(f"policy.{policy}.taken")[slot] = self.slots.filled[slot]


def test_slots_are_filled_in_turn_while_any_is_free() -> None:
    pool = Pool()
    assert [pool.complete() for _ in range(4)] == [3, 4, 5, None]
    pool.take(0, 4)
    assert pool.complete() is None, "policy 1 still needs it"
    pool.take(1, 4)
    assert pool.complete() == 4
    for policy in range(NUM_POLICIES):
        pool.take(policy, 3)
        pool.take(policy, 4)
    assert [pool.complete() for _ in range(3)] == [3, 4, None]


def test_refilling_counts_the_samples_of_a_dead_worker_and_poisons_the_slot() -> None:
    pool = Pool()
    slot = pool.pool.find_free()
    assert pool.slots.refill(slot, 1) == 0
    pool.slots.reward[slot, :2] = 1.0
    pool.slots.valid[slot] = True
    pool.slots.valid[slot, 0, 1] = False
    assert pool.slots.refill(slot, 1) == 2 * ENVS - 1
    fill(pool.slots, slot)
    pool.slots.refill(slot, 1)
    pool.slots.finish(slot, 1)
    with pytest.raises(SlotStateError, match="was never written"):
        pool.slots.require_written(slot)


def test_a_new_worker_announces_complete_slots_again_to_policies_that_have_not_taken_them() -> None:
    pool = Pool()
    first, second, third = (pool.complete() for _ in range(3))
    pool.ready[0].push(first)
    pool.ready[0].push(second)
    assert pool.ready[0].pop_all() == [first, second]
    pool.take(0, first)
    pool.ready[1].push(first)
    assert SlotPool(pool.arena, pool.slots, pool.plan, split_idx=1).announce_again()
    assert pool.ready[0].pop_all() == [second, third]
    assert pool.ready[1].pop_all() == [first, second, third]
    assert not SlotPool(pool.arena, pool.slots, pool.plan, split_idx=0).announce_again()


class Learner:
    """Copies the rows of one policy out of each slot once, and then gives the slot back; in sync only when told."""

    def __init__(self, run: Run, policy: int) -> None:
        self.run = run
        self.policy = policy
        self.taken = run.arena.words(f"policy.{policy}.taken")
        self.rings = [IndexRing(run.arena, f"policy.{policy}.ready.{worker}") for worker in range(NUM_WORKERS)]
        self.got: list[tuple[int, int]] = []
        self.actions: list[float] = []
        self.seen = [0] * run.plan.num_slots

    def poll(self) -> None:
        slots = self.run.slots
        for slot in [slot for ring in self.rings for slot in ring.pop_all()]:
            if self.seen[slot] == slots.filled[slot]:
                continue
            slots.require_written(slot)
            check_rows(slots, slot, self.run.episodes)
            self.seen[slot] = slots.filled[slot]
            self.got.append((slot, slots.filled[slot]))
            rows = slots.obs[slot]
            for column in range(ENVS):
                self.run.check_continuity(slot, rows[:, column])
            own = (slots.policy_idx[slot, :-1] == self.policy) & slots.valid[slot]
            self.actions += slots.action[slot][own][:, 0].tolist()
            if self.run.plan.async_rl:
                self.taken[slot] = self.seen[slot]


class Run(MortalRun):
    """Two workers, their policies, and the learners of two policies; the victims die early."""

    def __init__(self, async_rl: bool, inference_mode: str, worker_life: float = np.inf, server_life: float = np.inf):
        plan = plan_of(async_rl, inference_mode)
        arena, self.slots = small_arena(plan)
        self.episodes = Episodes(NUM_POLICIES)
        self.log = FailureLog(0, TrainConfig(), RunControl(arena, NUM_WORKERS))
        super().__init__(plan, arena, MarkingPolicies(self.slots), False, worker_life, server_life)
        self.num_dropped = 0
        self.learners = [Learner(self, policy) for policy in range(NUM_POLICIES)]
        self.num_turns = 0

    def new_worker(self, worker_idx: int, life: Life) -> RolloutWorker:
        arena: Any = MortalArena(self.arena, life)
        slots = TrajectorySlots(arena)
        ring = IndexRing(arena, f"requests.{worker_idx}")
        remote = RemoteActions(RequestTable(arena), ring, CountingWaker())
        actions = remote if self.has_server else LocalActions(self.policy)
        groups, pools = {}, {}
        for split_idx in range(worker_idx * SPLITS, (worker_idx + 1) * SPLITS):
            first = split_idx * ENVS
            envs = [NumberedEpisodes(self.episodes, first + env) for env in range(ENVS)]
            recovery = Recovery(self.log, envs.pop, lambda env, steps: 0)
            group = EnvGroup(list(envs), [0] * ENVS, first, BOX, "raw", recovery)
            group.policies = PolicyMapping(self.episodes.choose, NUM_POLICIES, [SINGLE_AGENT], ENVS, first)
            groups[split_idx] = group
            pools[split_idx] = SlotPool(arena, slots, self.plan, split_idx)
        source = PooledSlots(slots, pools, groups, [CountingWaker()] * NUM_POLICIES)
        splits = [
            Split(split_idx, group, SlotSink(split_idx, group, slots, source), actions)
            for split_idx, group in groups.items()
        ]
        return RolloutWorker(worker_idx, splits, RunControl(arena, NUM_WORKERS))

    def turn(self) -> None:
        self.num_turns += 1
        self.let_roles_act()
        self.learners[0].poll()
        if self.num_turns % 3 == 0:
            self.learners[1].poll()
        if not self.plan.async_rl and all(
            learner.seen[slot] == learner.taken[slot] + 1
            for learner in self.learners
            for slot in range(self.plan.num_slots)
        ):
            for learner in self.learners:
                for slot in range(self.plan.num_slots):
                    learner.taken[slot] = learner.seen[slot]

    def check_continuity(self, slot: int, rows: np.ndarray) -> None:
        """Each row is the next step of the episode of the one before, or begins an episode."""
        for (number, step), (next_number, next_step) in itertools.pairwise(rows.tolist()):
            assert (next_number, next_step) == (number, step + 1) or (next_number > number and next_step == 0)

    def finish(self) -> None:
        """Goes on until every learner has taken enough, and checks that none has missed or repeated anything."""
        for _ in range(3000):
            if min(len(learner.got) for learner in self.learners) >= NUM_TAKEN:
                break
            self.turn()
        else:
            raise AssertionError("the run hangs")
        for _ in range(30):
            for learner in self.learners:
                learner.poll()
        first, second = (learner.got for learner in self.learners)
        assert len(set(first)) == len(first) and set(first) == set(second)
        for slot in range(self.plan.num_slots):
            assert [count for each, count in first if each == slot] == list(range(1, self.slots.filled[slot] + 1))
        actions = [action for learner in self.learners for action in learner.actions]
        assert len(set(actions)) == len(actions) > 0
        assert min(len(learner.actions) for learner in self.learners) > 0.2 * len(actions)
        self.num_dropped = self.log.take().num_dropped
        self.arena.close()


in_both_timings = pytest.mark.parametrize("async_rl", [False, True], ids=["sync", "async"])


@pytest.mark.parametrize(("async_rl", "inference_mode"), [(True, "local"), (False, "central")])
def test_a_worker_may_die_at_any_write(async_rl: bool, inference_mode: str) -> None:
    num_dropped = set()
    for num_writes in itertools.count():
        run = Run(async_rl, inference_mode, worker_life=num_writes)
        run.finish()
        num_dropped.add(run.num_dropped)
        if not run.has_worker_died:
            break
    assert num_writes > 100
    assert 0 in num_dropped and len(num_dropped) > 4 and max(num_dropped) <= SPLITS * ENVS * ROLLOUT


@in_both_timings
def test_an_inference_worker_may_die_at_any_write(async_rl: bool) -> None:
    for num_writes in itertools.count():
        run = Run(async_rl, "central", server_life=num_writes)
        run.finish()
        assert run.num_dropped == 0
        if not run.has_server_died:
            break
    assert num_writes > 50


def test_in_sync_no_split_collects_before_every_policy_has_freed_all_slots() -> None:
    run = Run(async_rl=False, inference_mode="local")
    for learner in run.learners:
        learner.taken = np.zeros(run.plan.num_slots, int)  # these learners keep what they got
    for _ in range(200):
        run.turn()
    assert list(run.slots.filled) == [1] * run.plan.num_slots
    assert all(run.slots.state(slot) == SlotState.READY for slot in range(run.plan.num_slots))
    for slot in range(run.plan.num_slots):
        run.arena.words("policy.0.taken")[slot] = 1
    run.workers[0].poll()
    assert list(run.slots.filled) == [1] * run.plan.num_slots
    assert all(run.slots.state(slot) == SlotState.READY for slot in range(run.plan.num_slots))
    for slot in range(run.plan.num_slots):
        run.arena.words("policy.1.taken")[slot] = 1
    run.workers[0].poll()
    assert [run.slots.state(slot) for slot in (0, run.plan.slots_per_split)] == [SlotState.FILLING] * 2
