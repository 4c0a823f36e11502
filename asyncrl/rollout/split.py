"""One split's way through a slot: ask for actions, step, ask again, hand over. Knows no process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.slots import TrajectorySlots
from asyncrl.monitoring.phases import Phase, PhaseTimer
from asyncrl.monitoring.reports import EnvironmentFailures, EpisodeRecord
from asyncrl.rollout.env_group import ObsArray, StepRows
from asyncrl.rollout.failures import LostStep


class ActionSource(Protocol):
    """Where actions come from: this process's policy, or an inference worker."""

    def request(self, split_idx: int, slot: int, row: int) -> None:
        """Asks for actions, values and log-probs on a row of observations."""

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
    """A split's environments and the slot that they fill."""

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
        self._slot: int | None = None
        self._row = 0
        self._last_obs = np.zeros(slots.obs.shape[2:], dtype=slots.obs.dtype)
        self._last_state = np.zeros(slots.rnn_state.shape[2:], dtype=np.float32)
        group.reset(self._last_obs)

    @property
    def needs_slot(self) -> bool:
        """Whether the split waits for room to write into."""
        return self._slot is None

    @property
    def can_advance(self) -> bool:
        """Whether the split has actions to take."""
        return self._slot is not None and self._actions.is_answered(self.split_idx)

    def begin(self, slot: int) -> None:
        """Starts to fill a slot that was granted to this split."""
        self._slot, self._row = slot, 0
        begun = self.group.start_slot(self._last_obs, self._slots.obs[slot, 0])
        if self._slots.is_recurrent:
            state = self._slots.rnn_state[slot, 0]
            np.copyto(state, self._last_state)
            state[begun] = 0.0
        self._actions.request(self.split_idx, slot, 0)

    def advance(self) -> tuple[int, int | None]:
        """Takes the actions of the present row, or hands the slot over if it was the last row.

        Returns:
            (environment steps made, slot that is now ready or None).
        """
        slot, row, slots = self._slot, self._row, self._slots
        if slot is None:
            raise RuntimeError(f"split {self.split_idx} has no slot to fill")
        if row == slots.rollout:
            np.copyto(self._last_obs, slots.obs[slot, row])
            np.copyto(self._last_state, slots.rnn_state[slot, row])
            slots.finish(slot, self.split_idx)
            self._slot = None
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
        self._actions.request(self.split_idx, slot, row + 1)
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
