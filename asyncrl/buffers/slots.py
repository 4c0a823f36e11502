"""Trajectory slots: each has room for one trajectory of one split, and one owner at a time.

    FREE --grant (learner)--> FILLING --finish (worker)--> READY --take (learner)--> TRAINING --free (learner)--> FREE

The learner owns a slot that is FREE or TRAINING, and grants it to a split, whose worker owns it until it is READY. The
words of state and owner are authoritative; rings are hints. When a worker dies, the learner takes over its FILLING
slots as soon as nobody answers its requests any more (`asyncrl.buffers.control`), and grants them again.

With several policies a slot always belongs to one split, and its worker alone changes its state: FILLING by `refill`,
READY by `finish`. Which policies still need a READY slot is in words of their learners (`asyncrl.buffers.slot_pool`).
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.inference_buffer import ActorOutput, Beginnings

NOBODY = -1
_POISONED = ("value", "log_prob", "reward")


class SlotState(enum.IntEnum):
    """Who may use a slot; see the module's diagram."""

    FREE = 0
    FILLING = 1
    READY = 2
    TRAINING = 3


class SlotStateError(RuntimeError):
    """A slot was used in a state in which the caller does not own it."""


class TrajectorySlots:
    """All slots of a run. Arrays are indexed `[slot, row, column, ...]`, see `asyncrl.buffers.layout`.

    Attributes:
        num_slots, rollout, num_envs: slots S, step rows T, columns of a split: one for each agent of its environments.
        idle, is_env_step: None without several agents.
        policy_version: [S, T+1]; with several policies [S, T+1, E].
        policy_idx: [S, T+1, E] int16, the policy that plays each column; None with one policy.
        filled: [S], how often each slot was completed; None with one policy. Only this class writes it.
        is_recurrent: whether the slots keep recurrent states.
        owner: [S], the split that fills or filled each slot; `NOBODY` for a free one. Only this class writes it.
    """

    def __init__(self, arena: Arena) -> None:
        self.obs = arena.array("slots.obs")
        self.rnn_state = arena.array("slots.rnn_state")
        self.value = arena.array("slots.value")
        self.action = arena.array("slots.action")
        self.action_parameters = arena.array("slots.action_parameters")
        self.log_prob = arena.array("slots.log_prob")
        self.reward = arena.array("slots.reward")
        self.terminated = arena.array("slots.terminated")
        self.truncated = arena.array("slots.truncated")
        self.valid = arena.array("slots.valid")
        self.idle = arena.find_array("slots.idle")
        self.is_env_step = arena.find_array("slots.is_env_step")
        self.policy_version = arena.array("slots.policy_version")
        self.policy_idx = arena.find_array("slots.policy_idx")
        self.filled = None if self.policy_idx is None else arena.words("slots.filled")
        self.chosen_at = arena.array("slots.chosen_at")
        self.owner = arena.words("slots.owner")
        self._state = arena.words("slots.state")
        # NaN in these fields means that a row was not written since the slot was granted.
        self._poisoned = {name: arena.array(f"slots.{name}") for name in _POISONED}
        self.num_slots: int
        self.rollout: int
        self.num_envs: int
        self.num_slots, self.rollout, self.num_envs = self.reward.shape
        self.is_recurrent = self.rnn_state.shape[3] > 0

    def state(self, slot: int) -> SlotState:
        return SlotState(self._state[slot])

    def reset(self) -> None:
        """Frees and poisons every slot (before any process starts)."""
        for slot in range(self.num_slots):
            self._poison(slot)
            self.owner[slot] = NOBODY
            self._state[slot] = SlotState.FREE

    def grant(self, slot: int, split_idx: int) -> None:
        """Gives a free slot to a split (learner)."""
        self._require(slot, SlotState.FREE)
        self.owner[slot] = split_idx
        self._state[slot] = SlotState.FILLING

    def grant_again(self, slot: int) -> int:
        """Empties a slot whose worker died while it filled it; the same split keeps it (learner).

        Returns the number of samples that are lost: valid ones of complete rows.
        """
        self._require(slot, SlotState.FILLING)
        num_lost = int((self.valid[slot] & ~np.isnan(self.reward[slot])).sum())
        self._poison(slot)
        return num_lost

    def refill(self, slot: int, split_idx: int) -> int:
        """Empties a slot that no policy needs any more, and begins to fill it (its worker, with several policies).

        Returns the number of samples that are lost because a worker died while it filled the slot.
        """
        num_lost = 0
        if self._state[slot] == SlotState.FILLING:
            num_lost = self.grant_again(slot)
        else:
            self._poison(slot)
        self.owner[slot] = split_idx
        self._state[slot] = SlotState.FILLING
        return num_lost

    def finish(self, slot: int, split_idx: int) -> None:
        """Hands a filled slot to the learner, or to the learners of all policies (worker)."""
        self._require(slot, SlotState.FILLING)
        if self.owner[slot] != split_idx:
            raise SlotStateError(f"slot {slot} belongs to split {self.owner[slot]}, not to split {split_idx}")
        self._state[slot] = SlotState.READY
        if self.filled is not None:
            self.filled[slot] += 1

    def take(self, slot: int) -> None:
        """Takes a ready slot for training (learner).

        Raises:
            SlotStateError: the slot is not ready, or a row of it was not written since it was granted.
        """
        self.require_written(slot)
        self._state[slot] = SlotState.TRAINING

    def require_written(self, slot: int) -> None:
        """Raises `SlotStateError` if the slot is not ready, or a row of it was not written since it was granted."""
        self._require(slot, SlotState.READY)
        for name, field in self._poisoned.items():
            poisoned = np.isnan(field[slot])
            if poisoned.any():
                row, env = np.argwhere(poisoned)[0]
                raise SlotStateError(
                    f"slot {slot} of split {self.owner[slot]}: {name} of row {row}, environment {env} was never "
                    "written or is not a number"
                )

    def free(self, slot: int) -> None:
        """Ends the use of a slot and poisons it, so that its contents cannot be taken for new ones (learner)."""
        self._require(slot, SlotState.TRAINING)
        self._poison(slot)
        self.owner[slot] = NOBODY
        self._state[slot] = SlotState.FREE

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.obs[place], self.rnn_state[place]

    def beginnings(self, place: tuple[int, int]) -> Beginnings:
        """See `InferenceBuffer`. The final observation of a truncated episode counts, and so does the row after it.

        Row 0 has none: it continues the last row of the split's slot before, for which they were returned already.
        """
        (slot, row), begins = place, np.zeros(self.num_envs, dtype=np.bool_)
        if row > 0:
            before = slot, row - 1
            is_step = self.valid[before] if self.idle is None else self.valid[before] | self.idle[before]
            begins = self.terminated[before] | self.truncated[before] | ~is_step
        return Beginnings(self.owner[slot], begins, row < self.rollout)

    def answer(
        self,
        place: tuple[int, int],
        envs: slice | npt.NDArray[np.intp],
        answer: ActorOutput,
        version: int | npt.NDArray[np.int64],
        now: float,
    ) -> None:
        """See `InferenceBuffer`; the row after the last step gets a value only.

        With several policies, `envs` [E] are positions in the batch, and each column has the version of its policy.
        """
        self.value[place] = answer.value[envs]
        self.policy_version[place] = version
        self.chosen_at[place] = now
        if place[1] < self.rollout:
            self.action[place] = answer.action[envs]
            self.action_parameters[place] = answer.action_parameters[envs]
            self.log_prob[place] = answer.log_prob[envs]
            if self.is_recurrent:
                self.rnn_state[place[0], place[1] + 1] = answer.rnn_state[envs]

    def _poison(self, slot: int) -> None:
        for field in self._poisoned.values():
            field[slot] = np.nan

    def _require(self, slot: int, expected: SlotState) -> None:
        if self._state[slot] != expected:
            raise SlotStateError(
                f"slot {slot} is {self.state(slot).name}, expected {expected.name}; owner: split {self.owner[slot]}"
            )
