"""A rollout worker: its splits, the slots granted to them, and the learner that takes them when full.

consumes  granted slots (ring from the learner), actions (slot rows, answered by a policy)
produces  observations, rewards, ends of episodes (slot rows), requests (table and ring), ready slots (ring)
waits     when no split can go on: until woken by learner or inference worker, or for WAIT_S, then looks again
stops     when the run has ended
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.rings import IndexRing
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.buffers.wake import Waker
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import EnvironmentFailures, RolloutReport, SacMetrics, TrainMetrics, mean_metrics
from asyncrl.rollout.split import KeepsRecords, Split

WAIT_S = 0.1


class WorkerReports:
    """What a rollout worker says of itself, whatever it writes into. Owns its environments."""

    def __init__(
        self, worker_idx: int, groups: Sequence[KeepsRecords], control: RunControl, phases: PhaseTimer
    ) -> None:
        """Takes ownership of the environments of all its splits."""
        self.worker_idx = worker_idx
        self.phases = phases
        self._groups = groups
        self._control = control
        self._report_started = time.monotonic()
        self._env_steps = 0
        self._trained: list[TrainMetrics | SacMetrics] = []
        self._skipped_steps = self._skipped_steps_reported = 0
        self._num_training_infos = 0

    def note_training(self, metrics: TrainMetrics | SacMetrics | None, skipped_steps: int) -> None:
        """Keeps what training says of itself for the next report, where workers train.

        Args:
            metrics: of one call; None if it took no step.
            skipped_steps: optimizer steps that were left out so far.
        """
        if metrics is not None:
            self._trained.append(metrics)
        self._skipped_steps = skipped_steps

    def take_training_info(self) -> None:
        """Passes on to the environments the dict that an observer has sent since the last call, if one has."""
        if self._control.num_training_infos != self._num_training_infos:
            self._num_training_infos, info = self._control.read_training_info()
            for group in self._groups:
                group.set_training_info(info)

    def count_steps(self, num_steps: int) -> None:
        """Adds environment steps, for the next report and for the run."""
        self._env_steps += num_steps
        self._control.count_steps(self.worker_idx, num_steps)

    def report(self) -> RolloutReport:
        """What was done since the last report."""
        now, phases = time.monotonic(), self.phases.take()
        episodes = tuple(episode for group in self._groups for episode in group.take_episodes())
        report = RolloutReport(
            worker_idx=self.worker_idx,
            wall_s=now - self._report_started,
            busy_s=busy_s(phases),
            env_steps=self._env_steps,
            episodes=episodes,
            phases=phases,
            train=mean_metrics(self._trained),
            skipped_steps=self._skipped_steps - self._skipped_steps_reported,
            failures=_sum_failures([group.take_failures() for group in self._groups]),
        )
        self._report_started, self._env_steps, self._trained = now, 0, []
        self._skipped_steps_reported = self._skipped_steps
        return report

    @property
    def report_age_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._report_started

    def close(self) -> None:
        """Closes the environments."""
        for group in self._groups:
            group.close()


def _sum_failures(parts: Sequence[EnvironmentFailures]) -> EnvironmentFailures:
    return EnvironmentFailures(
        num_failures=sum(part.num_failures for part in parts),
        num_not_finite=sum(part.num_not_finite for part in parts),
        num_dropped=sum(part.num_dropped for part in parts),
        warnings=tuple(warning for part in parts for warning in part.warnings),
    )


class RolloutWorker(WorkerReports):
    """Moves its splits forward, whichever can."""

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
        """Takes ownership of the splits, which charge their time to the same `phases`."""
        super().__init__(worker_idx, [split.group for split in splits], control, phases or PhaseTimer())
        self._splits = {split.split_idx: split for split in splits}
        self._slots = slots
        self._granted = granted
        self._ready = ready
        self._learner = learner
        self._waiting_slots: dict[int, list[int]] = {split.split_idx: [] for split in splits}

    def poll(self) -> float:
        """Advances every split that can be advanced by one row.

        Returns:
            Seconds to wait, unless woken, before polling again.
        """
        for slot in self._granted.pop_all():
            self._waiting_slots[self._slots.owner(slot)].append(slot)
        worked = False
        for split_idx, split in self._splits.items():
            if split.needs_slot and self._waiting_slots[split_idx]:
                split.begin(self._waiting_slots[split_idx].pop(0))
                worked = True
            elif split.can_advance:
                self._advance(split)
                worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        if all(split.needs_slot for split in self._splits.values()):
            return Phase.WAIT_SLOTS
        return Phase.WAIT_ACTIONS

    def _advance(self, split: Split) -> None:
        num_steps, ready_slot = split.advance()
        if ready_slot is not None:
            self._ready.push(ready_slot)
            self._learner.wake()
            return
        self.count_steps(num_steps)
