"""Rollout workers: step environments, and write trajectories into slots or rows into a replay (`rollout/sinks.py`).

consumes  places to write to (granted or free slots, limits of a replay), actions (written by a policy)
produces  observations, rewards, ends of episodes (rows of slots or of a replay), requests for actions (table and ring),
          complete slots (rings)
waits     when no split may step or has its actions: until the learner or an inference worker wakes it, or for WAIT_S
stops     when the run has ended
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.inference.acting import ActingPolicy
from asyncrl.inference.acting_policies import ActingPolicies
from asyncrl.observers.reports import (
    EnvironmentFailures,
    Phase,
    PhaseTimer,
    RolloutReport,
    UpdateMetrics,
    mean_metrics,
)
from asyncrl.rollout.env_group import EnvironmentGroup, HostEnvGroup
from asyncrl.rollout.sinks import Place, Sink

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
        self._steps_reported = control.collected_steps(worker_idx)
        self._trained: list[UpdateMetrics] = []
        self._skipped_steps = self._skipped_steps_reported = 0
        self.num_training_infos = 0

    def record_training(self, metrics: UpdateMetrics | None, skipped_steps: int) -> None:
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

    def report(self) -> RolloutReport:
        """The work since the last report."""
        now, phases, failures = time.monotonic(), self.phases.take(), self._groups[0].failures
        collected = self._control.collected_steps(self.worker_idx)
        mappings = [group.policies for group in self._groups if group.policies is not None]
        report = RolloutReport(
            worker_idx=self.worker_idx,
            wall_s=now - self.report_started,
            env_steps=collected - self._steps_reported,
            episodes=tuple(episode for group in self._groups for episode in group.take_episodes()),
            phases=phases,
            train=mean_metrics(self._trained),
            skipped_steps=self._skipped_steps - self._skipped_steps_reported,
            failures=EnvironmentFailures() if failures is None else failures.take(),
            notes=tuple(note for mapping in mappings for note in mapping.take_notes()),
        )
        self.report_started, self._steps_reported, self._trained = now, collected, []
        self._skipped_steps_reported = self._skipped_steps
        return report

    def close(self) -> None:
        for group in self._groups:
            group.close()


class ActionSource(Protocol):
    """Provides actions: the policy of this process, or an inference worker."""

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        """Requests actions for a row of observations; returns whether they are already written."""

    def is_answered(self, split_idx: int) -> bool:
        """Whether the last request of the split was answered."""


class Split:
    """A split's environments, where their steps are written, and who acts.

    Attributes:
        place: where the observations are that the policy was asked for; None until `begin` succeeds.
        actions: who acts.
        is_answered: whether the actions at `place` were written when they were requested.
    """

    def __init__(
        self, split_idx: int, group: HostEnvGroup, sink: Sink, actions: ActionSource, phases: PhaseTimer | None = None
    ) -> None:
        self.split_idx = split_idx
        self.group = group
        self.sink = sink
        self.place: Place | None = None
        self.actions = actions
        self._phases = phases or PhaseTimer()
        self.is_answered = False

    def begin(self) -> bool:
        """Requests actions if the next step may be made; returns whether it may."""
        self.place = self.sink.begin()
        if self.place is None:
            return False
        self.is_answered = self.actions.request(self.split_idx, *self.place)
        return True

    def advance(self) -> int:
        """Steps the environments with the actions at `place`, and requests the next; returns the steps made."""
        assert self.place is not None
        opened = self.sink.open_row(self.place)
        if opened is None:
            self.place = None
            return 0
        actions, rows = opened
        num_steps = self.group.step(actions, rows)
        self.place = self.sink.close_row(self.place, rows, num_steps)
        self._phases.charge(Phase.STEP)
        if self.place is not None:
            self.is_answered = self.actions.request(self.split_idx, *self.place)
        return num_steps


class RolloutWorker(RolloutWorkerBase):
    """Steps its splits. Owns them; they measure their time with the same `phases`."""

    def __init__(
        self, worker_idx: int, splits: Sequence[Split], control: RunControl, phases: PhaseTimer | None = None
    ) -> None:
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = splits

    def poll(self) -> float:
        """Steps each split that has actions by one row; returns seconds to wait, unless woken, before the next call."""
        has_worked = False
        for split in self._splits:
            if split.place is None:
                if not split.begin():
                    continue
                has_worked = True
                if not split.sink.steps_at_once:
                    continue
            if split.is_answered or split.actions.is_answered(split.split_idx):
                self._control.count_steps(self.worker_idx, split.advance())
                has_worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if has_worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What the worker waits for if `poll` advanced no split."""
        is_idle = all(split.place is None for split in self._splits)
        return self._splits[0].sink.waits_for if is_idle else Phase.WAIT_ACTIONS


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
