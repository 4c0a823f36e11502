"""Where the steps of a split are written: a slot for one trajectory, or a stripe of a replay.

               source --free slot--> SlotSink --complete slot--> source
    limits of the learner --may step--> StripeSink --row--> learner

A sink names the place (slot or stripe, row) whose observations the policy gets next, and gives the memory for the step
from there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.messages import IndexRing, Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes, StepRows
from asyncrl.buffers.slot_pool import SlotPool
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.observers.reports import Phase
from asyncrl.rollout.env_group import HostEnvGroup

Place = tuple[int, int]
"""A slot or stripe, and a row of it."""


class Sink(Protocol):
    """The memory that a split fills.

    Attributes:
        waits_for: what the split waits for while `begin` returns None.
        steps_at_once: whether the place that `begin` names is stepped in the same turn of the worker if it can be.
    """

    waits_for: Phase
    steps_at_once: bool

    def begin(self) -> Place | None:
        """The place of the next observations if its step may be made now; None if the split has to wait."""

    def open_row(self, place: Place) -> tuple[npt.NDArray[Any], StepRows] | None:
        """The actions at a place, and where the results of its step are written.

        None if no step is made from there, because the slot is complete: it was passed on.
        """

    def close_row(self, place: Place, rows: StepRows, num_steps: int) -> Place | None:
        """Takes a step of `num_steps` environments; returns the next place, None if `begin` has to name it."""


class SlotSource(Protocol):
    """Provides the slots of a worker's splits."""

    def next_slot(self, split_idx: int) -> int | None:
        """A slot that the split may fill now; None if it has to wait for one."""

    def complete(self, slot: int) -> None:
        """Passes a complete slot on."""


class SlotSink:
    """Fills one slot after the other with trajectories of a split.

    A slot is complete when the policy has given its last row a value; no step is made from this row, which is also
    the first row of the next slot.
    """

    waits_for = Phase.WAIT_SLOTS
    steps_at_once = False

    def __init__(self, split_idx: int, group: HostEnvGroup, slots: TrajectorySlots, source: SlotSource) -> None:
        """Resets the environments."""
        self._split_idx = split_idx
        self._group = group
        self._slots = slots
        self._source = source
        self._last_obs = np.zeros(slots.obs.shape[2:], dtype=slots.obs.dtype)
        self._last_state = np.zeros(slots.rnn_state.shape[2:], dtype=np.float32)
        group.reset(self._last_obs)

    def begin(self) -> Place | None:
        slot = self._source.next_slot(self._split_idx)
        if slot is None:
            return None
        slots = self._slots
        restarted = self._group.start_slot(self._last_obs, slots.obs[slot, 0])
        if slots.is_recurrent:
            state = slots.rnn_state[slot, 0]
            np.copyto(state, self._last_state)
            state[restarted] = 0.0
        if slots.policy_idx is not None and self._group.policies is not None:
            slots.policy_idx[slot, 0] = self._group.policies.policy_idx
        return slot, 0

    def open_row(self, place: Place) -> tuple[npt.NDArray[Any], StepRows] | None:
        (slot, row), slots = place, self._slots
        if row == slots.rollout:
            np.copyto(self._last_obs, slots.obs[slot, row])
            np.copyto(self._last_state, slots.rnn_state[slot, row])
            if slots.idle is not None:
                self._group.end_slot(slots, slot)
            slots.finish(slot, self._split_idx)
            self._source.complete(slot)
            return None
        rows = StepRows(
            reward=slots.reward[slot, row],
            terminated=slots.terminated[slot, row],
            truncated=slots.truncated[slot, row],
            valid=slots.valid[slot, row],
            next_obs=slots.obs[slot, row + 1],
            idle=None if slots.idle is None else slots.idle[slot, row],
            is_env_step=None if slots.is_env_step is None else slots.is_env_step[slot, row],
        )
        return slots.action[slot, row], rows

    def close_row(self, place: Place, rows: StepRows, num_steps: int) -> Place:
        (slot, row), slots = place, self._slots
        if self._group.lost:
            self._truncate_lost_episodes(slot, row)
        if slots.is_recurrent:
            is_step = rows.valid if rows.idle is None else rows.valid | rows.idle
            slots.rnn_state[slot, row + 1][rows.terminated | ~is_step] = 0.0  # the next row begins an episode
        if slots.policy_idx is not None and self._group.policies is not None:
            slots.policy_idx[slot, row + 1] = self._group.policies.policy_idx
        return slot, row + 1

    def _truncate_lost_episodes(self, slot: int, row: int) -> None:
        """Truncates the episodes of lost steps in the previous row; this row holds their final observation.

        Of an environment that failed, no sample of that episode in the slot is trained on, because its last steps may
        already have been wrong.
        """
        slots = self._slots
        for lost in self._group.take_lost():
            first = max(0, row - lost.episode_steps)
            if lost.has_failed:
                samples = slots.valid[slot, first:row, lost.env]
                self._group.record_dropped(int(samples.sum()))
                samples[:] = False
            if first < row:
                slots.truncated[slot, row - 1, lost.env] = True


class GrantedSlots:
    """Slots that the learner grants, and gets back when they are complete."""

    def __init__(self, slots: TrajectorySlots, granted: IndexRing, ready: IndexRing, learner: Waker) -> None:
        """Consumes `granted` and produces `ready`, the rings of this worker."""
        self._slots = slots
        self._granted = granted
        self._ready = ready
        self._learner = learner
        self._waiting: dict[int, deque[int]] = defaultdict(deque)  # by split, in the order of the grants

    def next_slot(self, split_idx: int) -> int | None:
        for slot in self._granted.pop_all():
            self._waiting[self._slots.owner[slot]].append(slot)
        waiting = self._waiting[split_idx]
        return waiting.popleft() if waiting else None

    def complete(self, slot: int) -> None:
        self._ready.push(slot)
        self._learner.wake()


class PooledSlots:
    """Slots that stay with their splits, where several policies train.

    A slot is free when all policies have taken what it held; a complete one is announced to the learners of all.
    """

    def __init__(
        self,
        slots: TrajectorySlots,
        pools: Mapping[int, SlotPool],
        groups: Mapping[int, HostEnvGroup],
        learners: Sequence[Waker],
        weights: Sequence[WeightsChannel] = (),
    ) -> None:
        """Takes over the pools of the worker before this one, if there was one.

        Args:
            slots: all slots.
            pools: of each split.
            groups: of each split; they count what was in a slot that a dead worker has left.
            learners: of all policies.
            weights: of all policies; no slot is free until each has published some.
        """
        self._slots = slots
        self._pools = pools
        self._groups = groups
        self._learners = learners
        self._unpublished = list(weights)
        has_announced = [pool.announce_again() for pool in pools.values()]
        if any(has_announced):
            self._wake_learners()

    def next_slot(self, split_idx: int) -> int | None:
        self._unpublished = [channel for channel in self._unpublished if channel.num_publications == 0]
        slot = None if self._unpublished else self._pools[split_idx].find_free()
        if slot is not None:
            self._groups[split_idx].record_dropped(self._slots.refill(slot, split_idx))
        return slot

    def complete(self, slot: int) -> None:
        self._pools[self._slots.owner[slot]].announce(slot)
        self._wake_learners()

    def _wake_learners(self) -> None:
        for learner in self._learners:
            learner.wake()


class StripeSink:
    """Writes the rows of a split's stripe, as far as the learner's limits allow.

    Attributes:
        num_rows: rows written to the stripe so far.
    """

    waits_for = Phase.WAIT_UPDATES
    steps_at_once = True  # the limit counts the steps of all splits: each one is made before the next split asks

    def __init__(
        self,
        split_idx: int,
        group: HostEnvGroup,
        stripes: ReplayStripes,
        limits: ReplayLimits,
        learner: Waker | None = None,
    ) -> None:
        """Resets the environments into the row after the stripe's last one; `learner` is woken after each row."""
        self._split_idx = split_idx
        self._group = group
        self._stripes = stripes
        self._limits = limits
        self._learner = learner
        self.num_rows = stripes.num_rows[split_idx]
        group.reset(stripes.obs_at((split_idx, self.num_rows)))

    def begin(self) -> Place | None:
        """See `Sink`. Weights are the newest because actions are requested no earlier than the step may be made."""
        may_step = self._limits.may_step(self._split_idx, self.num_rows, self._stripes.total_env_steps())
        return (self._split_idx, self.num_rows) if may_step else None

    def open_row(self, place: Place) -> tuple[npt.NDArray[Any], StepRows]:
        return self._stripes.store_action(*place), self._stripes.rows(*place)

    def close_row(self, place: Place, rows: StepRows, num_steps: int) -> None:
        stripes, (split_idx, row) = self._stripes, place
        for lost in self._group.take_lost() if self._group.lost else ():
            # This row holds the final observation of the episode, which the previous step truncates.
            if lost.episode_steps > 0:
                stripes.rows(split_idx, row - 1).truncated[lost.env] = True
        stripes.publish(split_idx, num_steps)
        self.num_rows = row + 1
        if self._learner is not None:
            self._learner.wake()
