"""Rollout workers: for trajectories, which pass full slots to the learner, and for a replay, which write its rows.

                 trajectories                                     replay
consumes  granted slots (ring from the learner),          limits (words of the learner),
          actions (slot rows, written by a policy)        actions (mailbox, written by a policy)
produces  observations, rewards, ends of episodes (slot   observations, actions, rewards, ends of episodes (rows of
          rows), requests (table and ring), ready slots   the replay), requests (table and ring)
          (ring)
            with several policies, instead of granted slots: free slots of its splits (words of all learners);
            in addition: the policy of each column (slot rows); ready slots go to all learners
waits     when no split may step or has its actions: until the learner or an inference worker wakes it, or for WAIT_S
stops     when the run has ended
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.buffers.replay import ReplayLimits, ReplayStripes, StepRows
from asyncrl.buffers.slot_pool import SlotPool
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.weights import WeightsChannel
from asyncrl.models.acting import ActingPolicy
from asyncrl.models.acting_policies import ActingPolicies
from asyncrl.monitoring.reports import (
    EnvironmentFailures,
    Phase,
    PhaseTimer,
    RolloutReport,
    UpdateMetrics,
    busy_s,
    mean_metrics,
)
from asyncrl.rollout.agents_env_group import AgentsEnvGroup
from asyncrl.rollout.env_group import EnvironmentGroup, HostEnvGroup

WAIT_S = 0.1


class RolloutWorkerBase:
    """What all rollout workers have in common: environments, counted steps and reports.

    Owns the groups of its splits, which share one `FailureLog`.

    Attributes:
        report_started: time on the monotonic clock of the last report.
        num_training_infos: those of `RunControl.num_training_infos` that the environments have got.
    """

    def __init__(
        self, worker_idx: int, groups: Sequence[EnvironmentGroup], control: RunControl, phases: PhaseTimer
    ) -> None:
        self.worker_idx = worker_idx
        self.phases = phases
        self._groups = groups
        self._control = control
        self.report_started = time.monotonic()
        self._env_steps = 0
        self._trained: list[UpdateMetrics] = []
        self._skipped_steps = self._skipped_steps_reported = 0
        self.num_training_infos = 0

    def note_training(self, metrics: UpdateMetrics | None, skipped_steps: int) -> None:
        """Adds training metrics to the next report, for workers that train.

        Args:
            metrics: of one call; None if it made no optimizer step.
            skipped_steps: optimizer steps that were skipped since the start.
        """
        if metrics is not None:
            self._trained.append(metrics)
        self._skipped_steps = skipped_steps

    def take_training_info(self) -> None:
        """Passes what the runner has sent last on to the environments."""
        self.num_training_infos, info = self._control.read_training_info()
        for group in self._groups:
            group.set_training_info(info)

    @property
    def envs(self) -> list[Any]:
        """The environments of all groups, single or vectorized."""
        return [env for group in self._groups for env in group.envs]

    def count_steps(self, num_steps: int) -> None:
        """Adds environment steps to the next report and to the run's total."""
        self._env_steps += num_steps
        self._control.count_steps(self.worker_idx, num_steps)

    def report(self) -> RolloutReport:
        """The work since the last report."""
        now, phases, failures = time.monotonic(), self.phases.take(), self._groups[0].failures
        report = RolloutReport(
            worker_idx=self.worker_idx,
            wall_s=now - self.report_started,
            busy_s=busy_s(phases),
            env_steps=self._env_steps,
            episodes=tuple(episode for group in self._groups for episode in group.take_episodes()),
            phases=phases,
            train=mean_metrics(self._trained),
            skipped_steps=self._skipped_steps - self._skipped_steps_reported,
            failures=EnvironmentFailures() if failures is None else failures.take(),
        )
        self.report_started, self._env_steps, self._trained = now, 0, []
        self._skipped_steps_reported = self._skipped_steps
        return report

    def close(self) -> None:
        for group in self._groups:
            group.close()


class RolloutWorker(RolloutWorkerBase):
    """Fills granted slots. Owns its splits, which measure their time with the same `phases`."""

    def __init__(
        self,
        worker_idx: int,
        splits: Sequence[Split],
        slots: TrajectorySlots,
        granted: IndexRing,
        ready: IndexRing,
        learner: Waker,
        control: RunControl,
        phases: PhaseTimer | None = None,
    ) -> None:
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = {split.split_idx: split for split in splits}
        self._slots = slots
        self._granted = granted
        self._ready = ready
        self._learner = learner

    def poll(self) -> float:
        """Steps each split that has actions by one row; returns seconds to wait, unless woken, before the next call."""
        for slot in self._granted.pop_all():
            self._splits[self._slots.owner[slot]].granted_slots.append(slot)
        has_worked = False
        for split in self._splits.values():
            if split.slot is None and split.granted_slots:
                split.begin(split.granted_slots.pop(0))
                has_worked = True
            elif split.can_advance:
                num_steps, ready_slot = split.advance()
                if ready_slot is None:
                    self.count_steps(num_steps)
                else:
                    self._ready.push(ready_slot)
                    self._learner.wake()
                has_worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if has_worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What the worker waits for if `poll` advanced no split."""
        if all(split.slot is None for split in self._splits.values()):
            return Phase.WAIT_SLOTS
        return Phase.WAIT_ACTIONS


class PooledRolloutWorker(RolloutWorkerBase):
    """Fills the slots of its splits' pools, where several policies train. Owns its splits.

    It begins a slot when all policies have taken what the slot held, and no process grants it. `learners` wake the
    learners of all policies.
    """

    def __init__(
        self,
        worker_idx: int,
        splits: Sequence[Split],
        pools: Sequence[SlotPool],
        slots: TrajectorySlots,
        learners: Sequence[Waker],
        control: RunControl,
        weights: Sequence[WeightsChannel] = (),
        phases: PhaseTimer | None = None,
    ) -> None:
        """Takes over the pools, one for each split, from the worker before this one if there was one.

        `weights` are those of all policies; until each has published some, nothing is collected.
        """
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = splits
        self._pools = pools
        self._slots = slots
        self._learners = learners
        self._unpublished = list(weights)
        has_announced = [pool.announce_again() for pool in pools]
        if any(has_announced):
            self._wake_learners()

    def poll(self) -> float:
        """Steps each split that has actions by one row; returns seconds as `RolloutWorker.poll` does."""
        if self._unpublished:
            self._unpublished = [channel for channel in self._unpublished if channel.num_publications == 0]
            return WAIT_S if self._unpublished else 0.0
        has_worked = False
        for split, pool in zip(self._splits, self._pools, strict=True):
            if split.slot is None:
                slot = pool.find_free()
                if slot is None:
                    continue
                split.group.note_dropped(self._slots.refill(slot, split.split_idx))
                split.begin(slot)
                has_worked = True
            elif split.can_advance:
                num_steps, complete_slot = split.advance()
                if complete_slot is None:
                    self.count_steps(num_steps)
                else:
                    pool.announce(complete_slot)
                    self._wake_learners()
                has_worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if has_worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What the worker waits for if `poll` advanced no split."""
        return Phase.WAIT_SLOTS if all(split.slot is None for split in self._splits) else Phase.WAIT_ACTIONS

    def report(self) -> RolloutReport:
        """The work since the last report, and the notes of the policy mappings."""
        mappings = [split.group.policies for split in self._splits if split.group.policies is not None]
        notes = tuple(note for mapping in mappings for note in mapping.take_notes())
        return dataclasses.replace(super().report(), notes=notes)

    def _wake_learners(self) -> None:
        for learner in self._learners:
            learner.wake()


class ActionSource(Protocol):
    """Provides actions: the policy of this process, or an inference worker."""

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        """Requests actions for a row of observations; returns whether they are already written."""

    def is_answered(self, split_idx: int) -> bool:
        """Whether the last request of the split was answered."""


class Split:
    """A split's environments and the slot that they fill.

    Attributes:
        slot: the slot; None while the split waits for one.
        granted_slots: the next slots, in the order in which they were granted.
    """

    def __init__(
        self,
        split_idx: int,
        group: HostEnvGroup,
        slots: TrajectorySlots,
        actions: ActionSource,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Resets the environments."""
        self.split_idx = split_idx
        self.group = group
        self._slots = slots
        if slots.policy_idx is not None:
            assert group.policies is not None
            self._mapping = group.policies
        self._actions = actions
        self._phases = phases or PhaseTimer()
        self.slot: int | None = None
        self.granted_slots: list[int] = []
        self._is_answered = False
        self._row = 0
        self._last_obs = np.zeros(slots.obs.shape[2:], dtype=slots.obs.dtype)
        self._last_state = np.zeros(slots.rnn_state.shape[2:], dtype=np.float32)
        group.reset(self._last_obs)

    @property
    def can_advance(self) -> bool:
        """Whether the actions of the present row are written."""
        return self.slot is not None and (self._is_answered or self._actions.is_answered(self.split_idx))

    def begin(self, slot: int) -> None:
        """Starts to fill a slot that was granted to this split."""
        self.slot, self._row = slot, 0
        restarted = self.group.start_slot(self._last_obs, self._slots.obs[slot, 0])
        if self._slots.is_recurrent:
            state = self._slots.rnn_state[slot, 0]
            np.copyto(state, self._last_state)
            state[restarted] = 0.0
        if self._slots.policy_idx is not None:
            self._slots.policy_idx[slot, 0] = self._mapping.policy_idx
        self._is_answered = self._actions.request(self.split_idx, slot, 0)

    def advance(self) -> tuple[int, int | None]:
        """Steps the environments with the actions of the present row, or releases the slot after its last row.

        Returns the environment steps made, and the slot if it is now ready.
        """
        slot, row, slots = self.slot, self._row, self._slots
        if slot is None:
            raise RuntimeError(f"split {self.split_idx} has no slot to fill")
        if row == slots.rollout:
            np.copyto(self._last_obs, slots.obs[slot, row])
            np.copyto(self._last_state, slots.rnn_state[slot, row])
            if isinstance(self.group, AgentsEnvGroup):
                self.group.end_slot(slots, slot)
            slots.finish(slot, self.split_idx)
            self.slot = None
            return 0, slot
        rows = StepRows(
            reward=slots.reward[slot, row],
            terminated=slots.terminated[slot, row],
            truncated=slots.truncated[slot, row],
            valid=slots.valid[slot, row],
            next_obs=slots.obs[slot, row + 1],
            idle=None if slots.idle is None else slots.idle[slot, row],
            is_env_step=None if slots.is_env_step is None else slots.is_env_step[slot, row],
        )
        num_steps = self.group.step(slots.action[slot, row], rows)
        if self.group.lost:
            self._truncate_lost_episodes(slot, row)
        if slots.is_recurrent:
            is_step = rows.valid if rows.idle is None else rows.valid | rows.idle
            slots.rnn_state[slot, row + 1][rows.terminated | ~is_step] = 0.0  # the next row begins an episode
        if slots.policy_idx is not None:
            slots.policy_idx[slot, row + 1] = self._mapping.policy_idx
        self._phases.charge(Phase.STEP)
        self._row = row + 1
        self._is_answered = self._actions.request(self.split_idx, slot, row + 1)
        return num_steps, None

    def _truncate_lost_episodes(self, slot: int, row: int) -> None:
        """Truncates the episodes of lost steps in the previous row; this row holds their final observation.

        Of an environment that failed, no sample of that episode in the slot is trained on, because its last steps may
        already have been wrong.
        """
        slots = self._slots
        for lost in self.group.take_lost():
            first = max(0, row - lost.episode_steps)
            if lost.has_failed:
                samples = slots.valid[slot, first:row, lost.env]
                self.group.note_dropped(int(samples.sum()))
                samples[:] = False
            if first < row:
                slots.truncated[slot, row - 1, lost.env] = True


class LocalActions:
    """The policy of this process answers immediately, always with the newest weights."""

    def __init__(self, policy: ActingPolicy | ActingPolicies) -> None:
        self._policy = policy

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        self._policy.answer([(slot, row)])
        return True

    def is_answered(self, split_idx: int) -> bool:
        return True


class RemoteActions:
    """An inference worker answers: the request is written to the table, and a ring announces it."""

    def __init__(self, table: RequestTable, ring: IndexRing, server: Waker) -> None:
        self._table = table
        self._ring = ring
        self._server = server

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        self._table.ask(split_idx, slot, row)
        self._ring.push(split_idx)
        self._server.wake()
        return False

    def is_answered(self, split_idx: int) -> bool:
        return not self._table.is_open(split_idx)


class ReplaySplit:
    """A split's environments and the stripe that they fill.

    Attributes:
        num_rows: rows written to the stripe so far.
        has_asked: whether actions for the present row were requested.
    """

    def __init__(
        self,
        split_idx: int,
        group: HostEnvGroup,
        stripes: ReplayStripes,
        actions: ActionSource,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Resets the environments into the row after the stripe's last one."""
        self.split_idx = split_idx
        self.group = group
        self._stripes = stripes
        self._actions = actions
        self._phases = phases or PhaseTimer()
        self.num_rows = stripes.num_rows[split_idx]
        self.has_asked = self._is_answered = False
        group.reset(stripes.obs_at((split_idx, self.num_rows)))

    @property
    def can_advance(self) -> bool:
        """Whether the actions of the present row are written."""
        return self.has_asked and (self._is_answered or self._actions.is_answered(self.split_idx))

    def ask(self) -> None:
        """Requests the actions of the present row. Call it when the row may be stepped: weights are then the newest."""
        self.has_asked = True
        self._is_answered = self._actions.request(self.split_idx, self.split_idx, self.num_rows)

    def advance(self) -> int:
        """Steps the environments with the actions of the present row and publishes the row; returns the steps made."""
        stripes, split_idx, row = self._stripes, self.split_idx, self.num_rows
        action, rows = stripes.store_action(split_idx, row), stripes.rows(split_idx, row)
        num_steps = self.group.step(action, rows)
        for lost in self.group.take_lost() if self.group.lost else ():
            # This row holds the final observation of the episode, which the previous step truncates.
            if lost.episode_steps > 0:
                stripes.rows(split_idx, row - 1).truncated[lost.env] = True
        stripes.publish(split_idx, num_steps)
        self._phases.charge(Phase.STEP)
        self.num_rows, self.has_asked = row + 1, False
        return num_steps


class ReplayWorker(RolloutWorkerBase):
    """Steps its splits as far as the learner's limits allow. Owns them; they measure time with the same `phases`."""

    def __init__(
        self,
        worker_idx: int,
        splits: Sequence[ReplaySplit],
        stripes: ReplayStripes,
        limits: ReplayLimits,
        learner: Waker,
        control: RunControl,
        phases: PhaseTimer | None = None,
    ) -> None:
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = splits
        self._stripes = stripes
        self._limits = limits
        self._learner = learner
        self._is_limited = False

    def poll(self) -> float:
        """Steps each split that may step and has actions by one row; returns seconds as `RolloutWorker.poll` does."""
        has_worked, self._is_limited = False, False
        for split in self._splits:
            if not split.has_asked:
                if not self._limits.may_step(split.split_idx, split.num_rows, self._stripes.total_env_steps()):
                    self._is_limited = True
                    continue
                split.ask()
                has_worked = True
            if split.can_advance:
                self.count_steps(split.advance())
                self._learner.wake()
                has_worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if has_worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        return Phase.WAIT_UPDATES if self._is_limited else Phase.WAIT_ACTIONS
