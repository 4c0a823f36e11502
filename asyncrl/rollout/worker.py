"""A rollout worker: its splits, the slots granted to them, and the learner that takes them when full.

consumes  granted slots (ring from the learner), actions (slot rows, answered by a policy)
produces  observations, rewards, ends of episodes (slot rows), requests (table and ring), ready slots (ring)
waits     when no split can go on: until woken by learner or inference worker, or for WAIT_S, then looks again
stops     when the run has ended
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.control import RunControl
from asyncrl.buffers.messages import IndexRing, RequestTable, Waker
from asyncrl.buffers.replay import StepRows
from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.models.acting import ActingPolicy
from asyncrl.monitoring.phases import Phase, PhaseTimer, busy_s
from asyncrl.monitoring.reports import (
    EnvironmentFailures,
    EpisodeRecord,
    RolloutReport,
    SacMetrics,
    TrainMetrics,
    mean_metrics,
)
from asyncrl.rollout.env_group import ObsArray
from asyncrl.rollout.failures import LostStep

WAIT_S = 0.1


class RolloutWorkerBase:
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
        failures = [group.take_failures() for group in self._groups]
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
            failures=EnvironmentFailures(
                num_failures=sum(part.num_failures for part in failures),
                num_not_finite=sum(part.num_not_finite for part in failures),
                num_dropped=sum(part.num_dropped for part in failures),
                warnings=tuple(warning for part in failures for warning in part.warnings),
            ),
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


class RolloutWorker(RolloutWorkerBase):
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
            if split.slot is None and self._waiting_slots[split_idx]:
                split.begin(self._waiting_slots[split_idx].pop(0))
                worked = True
            elif split.can_advance:
                num_steps, ready_slot = split.advance()
                if ready_slot is None:
                    self.count_steps(num_steps)
                else:
                    self._ready.push(ready_slot)
                    self._learner.wake()
                worked = True
        self.phases.charge(Phase.OTHER)
        return 0.0 if worked else WAIT_S

    @property
    def waiting_for(self) -> Phase:
        """What keeps the worker from going on when `poll` did nothing."""
        if all(split.slot is None for split in self._splits.values()):
            return Phase.WAIT_SLOTS
        return Phase.WAIT_ACTIONS


class ActionSource(Protocol):
    """Where actions come from: this process's policy, or an inference worker."""

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        """Asks for actions, values and log-probs on a row of observations; returns whether they are there already."""

    def is_answered(self, split_idx: int) -> bool:
        """Whether the last request of the split was answered."""


class KeepsRecords(Protocol):
    """Environments as their worker's reports need them."""

    def take_episodes(self) -> tuple[EpisodeRecord, ...]:
        """Episodes finished since the last call."""

    def take_failures(self) -> EnvironmentFailures:
        """What went wrong since the last call."""

    def set_training_info(self, info: Mapping[str, Any]) -> None:
        """Gives a dict to the environments that take one."""

    def close(self) -> None:
        """Closes the environments."""


class StepsEnvironments(KeepsRecords, Protocol):
    """A split's environments, see `asyncrl.rollout.env_group.EnvGroup`."""

    lost: list[LostStep]

    def __len__(self) -> int: ...

    def reset(self, obs: ObsArray) -> None:
        """Starts an episode in every environment."""

    def step(self, actions: npt.NDArray[Any], rows: StepRows) -> int:
        """Takes one step in every environment and returns how many were made."""

    def start_slot(self, last_obs: ObsArray, first_obs: ObsArray) -> list[int]:
        """Writes the first row of a new slot from the last row of the one before; returns what was reset for it."""

    def take_lost(self) -> list[LostStep]:
        """Steps that came to nothing since the last call."""

    def note_dropped(self, num_samples: int) -> None:
        """Notes that samples were taken back."""


class Split:
    """A split's environments and the slot that they fill.

    Attributes:
        slot: the slot; None while the split waits for room to write into.
    """

    def __init__(
        self,
        split_idx: int,
        group: StepsEnvironments,
        slots: TrajectorySlots,
        actions: ActionSource,
        phases: PhaseTimer | None = None,
    ) -> None:
        """Resets the environments."""
        self.split_idx = split_idx
        self.group = group
        self._slots = slots
        self._actions = actions
        self._phases = phases or PhaseTimer()
        self.slot: int | None = None
        self._is_answered = False
        self._row = 0
        self._last_obs = np.zeros(slots.obs.shape[2:], dtype=slots.obs.dtype)
        self._last_state = np.zeros(slots.rnn_state.shape[2:], dtype=np.float32)
        group.reset(self._last_obs)

    @property
    def can_advance(self) -> bool:
        """Whether the split has actions to take."""
        return self.slot is not None and (self._is_answered or self._actions.is_answered(self.split_idx))

    def begin(self, slot: int) -> None:
        """Starts to fill a slot that was granted to this split."""
        self.slot, self._row = slot, 0
        begun = self.group.start_slot(self._last_obs, self._slots.obs[slot, 0])
        if self._slots.is_recurrent:
            state = self._slots.rnn_state[slot, 0]
            np.copyto(state, self._last_state)
            state[begun] = 0.0
        self._is_answered = self._actions.request(self.split_idx, slot, 0)

    def advance(self) -> tuple[int, int | None]:
        """Takes the actions of the present row, or hands the slot over if it was the last row.

        Returns:
            (environment steps made, slot that is now ready or None).
        """
        slot, row, slots = self.slot, self._row, self._slots
        if slot is None:
            raise RuntimeError(f"split {self.split_idx} has no slot to fill")
        if row == slots.rollout:
            np.copyto(self._last_obs, slots.obs[slot, row])
            np.copyto(self._last_state, slots.rnn_state[slot, row])
            slots.finish(slot, self.split_idx)
            self.slot = None
            return 0, slot
        rows = StepRows(
            reward=slots.reward[slot, row],
            terminated=slots.terminated[slot, row],
            truncated=slots.truncated[slot, row],
            valid=slots.valid[slot, row],
            next_obs=slots.obs[slot, row + 1],
        )
        num_steps = self.group.step(slots.action[slot, row], rows)
        if self.group.lost:
            self._take_back(slot, row)
        if slots.is_recurrent:
            slots.rnn_state[slot, row + 1][rows.terminated | ~rows.valid] = 0.0  # the next row begins an episode
        self._phases.charge(Phase.STEP)
        self._row = row + 1
        self._is_answered = self._actions.request(self.split_idx, slot, row + 1)
        return num_steps, None

    def _take_back(self, slot: int, row: int) -> None:
        """Ends the episodes of lost steps in the row before, so that this row holds their final observation.

        Of an environment that has failed nothing in the slot is trained on, for its last steps may have been wrong
        already.
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
    """This process's own copy of the policy answers at once, always with the newest weights."""

    def __init__(self, policy: ActingPolicy) -> None:
        """Takes the policy that answers."""
        self._policy = policy

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        """Answers the request of any split on the spot."""
        self._policy.refresh()
        self._policy.answer([(slot, row)])
        return True

    def is_answered(self, split_idx: int) -> bool:
        """Always: the answer came with the request."""
        return True


class RemoteActions:
    """An inference worker answers: the request goes into the table, the news of it through a ring."""

    def __init__(self, table: RequestTable, ring: IndexRing, server: Waker) -> None:
        """Takes the ring to the inference worker that serves this worker, and its waker."""
        self._table = table
        self._ring = ring
        self._server = server

    def request(self, split_idx: int, slot: int, row: int) -> bool:
        """Sends the request."""
        self._table.ask(split_idx, slot, row)
        self._ring.push(split_idx)
        self._server.wake()
        return False

    def is_answered(self, split_idx: int) -> bool:
        """Whether the inference worker has written the actions."""
        return not self._table.is_open(split_idx)
