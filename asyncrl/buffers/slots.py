"""Trajectory slots: room for one trajectory of one split each, with one owner at a time.

    FREE --grant (learner)--> FILLING --finish (worker)--> READY --take (learner)--> TRAINING --free (learner)--> FREE

The learner owns a slot that is FREE or TRAINING, and gives FILLING to a split; the worker of that split owns it until
it is READY. The words are the truth; rings only carry the news. When the worker dies the learner owns its FILLING slots
too, as soon as nobody answers its requests any more (`asyncrl.buffers.control`), and grants them anew.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.answers import CriticizedAnswer
from asyncrl.buffers.arena import Arena

NOBODY = -1


class SlotState(enum.IntEnum):
    """Who may touch a slot, see the module's diagram."""

    FREE = 0
    FILLING = 1
    READY = 2
    TRAINING = 3


class SlotStateError(RuntimeError):
    """A slot was used in a state in which the caller does not own it."""


class TrajectorySlots:
    """All slots of a run. Arrays are indexed `[slot, row, env, ...]`, see `asyncrl.buffers.layout`.

    Attributes:
        num_slots, rollout, num_envs: slots S, step rows T, environments of a split E.
        is_recurrent: whether the slots keep recurrent states.
    """

    def __init__(self, arena: Arena) -> None:
        """Views the arrays that `slot_specs` described."""
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
        self.policy_version = arena.array("slots.policy_version")
        self.chosen_at = arena.array("slots.chosen_at")
        self._state = arena.words("slots.state")
        self._owner = arena.words("slots.owner")
        self._generation = arena.words("slots.generation")
        self.num_slots: int
        self.rollout: int
        self.num_envs: int
        self.num_slots, self.rollout, self.num_envs = self.reward.shape
        self.is_recurrent = self.rnn_state.shape[3] > 0

    def state(self, slot: int) -> SlotState:
        """Present state of a slot."""
        return SlotState(self._state[slot])

    def owner(self, slot: int) -> int:
        """The split that fills or filled the slot, `NOBODY` if it is free."""
        return int(self._owner[slot])

    def generation(self, slot: int) -> int:
        """How many times the slot was granted."""
        return int(self._generation[slot])

    def reset(self) -> None:
        """Frees and poisons every slot (before any process starts)."""
        for slot in range(self.num_slots):
            self._poison(slot)
            self._owner[slot] = NOBODY
            self._state[slot] = SlotState.FREE

    def grant(self, slot: int, split_idx: int) -> None:
        """Gives a free slot to a split (learner)."""
        self._require(slot, SlotState.FREE)
        self._owner[slot] = split_idx
        self._generation[slot] += 1
        self._state[slot] = SlotState.FILLING

    def grant_anew(self, slot: int) -> int:
        """Empties a slot whose worker died while it filled it, and leaves it with the same split (learner).

        Returns:
            Samples that are lost: valid ones of whole rows.
        """
        self._require(slot, SlotState.FILLING)
        num_lost = int((self.valid[slot] & ~np.isnan(self.reward[slot])).sum())
        self._poison(slot)
        self._generation[slot] += 1
        return num_lost

    def finish(self, slot: int, split_idx: int) -> None:
        """Hands a filled slot to the learner (worker)."""
        self._require(slot, SlotState.FILLING, split_idx)
        self._state[slot] = SlotState.READY

    def take(self, slot: int) -> None:
        """Takes a ready slot for training (learner).

        Raises:
            SlotStateError: the slot is not ready, or rows were not written since it was granted.
        """
        self._require(slot, SlotState.READY)
        self.check_written(slot)
        self._state[slot] = SlotState.TRAINING

    def free(self, slot: int) -> None:
        """Ends the use of a slot (learner), whose old contents can't be mistaken for new ones from now on."""
        self._require(slot, SlotState.TRAINING)
        self._poison(slot)
        self._owner[slot] = NOBODY
        self._state[slot] = SlotState.FREE

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The observations `[E, row_size]` of a (slot, row), and the recurrent states `[E, S]` before them."""
        return self.obs[place], self.rnn_state[place]

    def answer(self, place: tuple[int, int], envs: slice, answer: CriticizedAnswer, version: int, now: float) -> None:
        """Writes beside the observations of a (slot, row) what a policy says of them.

        Args:
            place: slot and row; the row after the last step gets a value only.
            envs: the split's part of the answer.
            answer: of one forward pass.
            version: the policy's.
            now: time (`time.monotonic`).
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

    def check_written(self, slot: int) -> None:
        """Raises `SlotStateError` if a row of the slot still holds poison."""
        for name, field in (("value", self.value), ("log_prob", self.log_prob), ("reward", self.reward)):
            poisoned = np.isnan(field[slot])
            if poisoned.any():
                row, env = np.argwhere(poisoned)[0]
                raise SlotStateError(
                    f"slot {slot} of split {self.owner(slot)}: {name} of row {row}, environment {env} was never "
                    "written or is not a number"
                )

    def _poison(self, slot: int) -> None:
        for field in (self.value, self.log_prob, self.reward):
            field[slot] = np.nan

    def _require(self, slot: int, expected: SlotState, split_idx: int | None = None) -> None:
        if self._state[slot] != expected:
            raise SlotStateError(
                f"slot {slot} is {self.state(slot).name}, expected {expected.name}; owner: split {self.owner(slot)}"
            )
        if split_idx is not None and self.owner(slot) != split_idx:
            raise SlotStateError(f"slot {slot} belongs to split {self.owner(slot)}, not to split {split_idx}")
