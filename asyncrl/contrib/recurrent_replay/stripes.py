"""Recurrent states beside the rows of a replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.arena import Arena, ArraySpec
from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.buffers.replay import ReplayStripes
from asyncrl.envs.spec import EnvSpec
from asyncrl.rollout.sinks import StripeSink


def state_specs(state_size: int, spec: EnvSpec, rows: tuple[int, ...]) -> list[ArraySpec]:
    """The array of states, in addition to those of the plain replay."""
    return [ArraySpec("replay.rnn_state", "float32", (*rows, state_size))]


class RecurrentStripes(ReplayStripes):
    """All stripes of a run with a recurrent policy.

    Attributes:
        rnn_state: [K, R, E, S] float32, the policy's state before each row's observation, 0 where an episode begins.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.rnn_state: npt.NDArray[np.float32] = arena.array("replay.rnn_state")
        self._fields["rnn_state"] = self.rnn_state

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return self.obs_at(place), self.state_at(*place)

    def state_at(self, split_idx: int, row: int) -> npt.NDArray[np.float32]:
        """The states `[E, S]` of a row, as a view."""
        state: npt.NDArray[np.float32] = self.rnn_state[split_idx, row % self.capacity]
        return state

    def answer(self, place: tuple[int, int], envs: slice, answer: ActorOutput, version: int, now: float) -> None:
        """Writes the state after the observation to the next row, too."""
        super().answer(place, envs, answer, version, now)
        self.state_at(place[0], place[1] + 1)[:] = answer.rnn_state[envs]

    def publish(self, split_idx: int, num_steps: int) -> None:
        """Writes 0 to the next row where an episode begins, over the states that the policy has written."""
        row = self.num_rows[split_idx]
        rows = self.rows(split_idx, row)
        self.state_at(split_idx, row + 1)[rows.terminated | ~rows.valid] = 0.0
        super().publish(split_idx, num_steps)


class RecurrentSink(StripeSink):
    """Writes rows of a recurrent policy."""

    _stripes: RecurrentStripes

    def __init__(self, *args: Any) -> None:
        """Takes the arguments of `StripeSink`; the states of its first row are 0."""
        super().__init__(*args)
        self._stripes.state_at(self._split_idx, self.num_rows)[:] = 0.0
