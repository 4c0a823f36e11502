"""Where the observations of splits wait for actions, and what a policy answers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

_NOT_GIVEN = np.empty(0, dtype=np.float32)


class ActorOutput(NamedTuple):
    """What a policy returns for `[B]` observations; a replay stores actions only.

    Attributes:
        action: [B, A] float32 or [B] int64, as it was sampled.
        log_prob: [B] float32, of exactly that action.
        value: [B] float32, in units of rewards.
        action_parameters: [B, P] float32, parameters of the action's distribution.
        rnn_state: [B, S] float32, recurrent states after the observations; not read where S is 0.
        features: [B, F] float32, inputs of the policy's last layer, if its exploration is a function of them.
    """

    action: npt.NDArray[Any]
    log_prob: npt.NDArray[Any] = _NOT_GIVEN
    value: npt.NDArray[Any] = _NOT_GIVEN
    action_parameters: npt.NDArray[Any] = _NOT_GIVEN
    rnn_state: npt.NDArray[Any] = _NOT_GIVEN
    features: npt.NDArray[Any] = _NOT_GIVEN


class Beginnings(NamedTuple):
    """Where episodes begin in a split.

    Attributes:
        split_idx: the split.
        begins: [E] bool, whether an episode begins with the next action.
        takes_action: whether the split acts on these observations; in the last row of a slot it does not.
    """

    split_idx: int
    begins: npt.NDArray[np.bool_]
    takes_action: bool


class InferenceBuffer(Protocol):
    """Slots of trajectories, or stripes of the replay. A place is a pair of numbers: (slot, row), or (split, row)."""

    @property
    def num_envs(self) -> int:
        """Environments of a split E."""

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the observations `[E, row_size]` of a place, and the recurrent states `[E, S]` before them."""

    def beginnings(self, place: tuple[int, int]) -> Beginnings:
        """Returns in which environments an episode begins at a place; none at the first row of the run."""

    def answer(self, place: tuple[int, int], envs: slice, answer: ActorOutput, version: int, now: float) -> None:
        """Writes a policy's answer beside the observations of a place.

        Args:
            place: whose observations were answered.
            envs: the split's part of the batch.
            answer: what the policy returned for the whole batch; slots need all of its fields.
            version: policy version of the answer.
            now: time of the answer (`time.monotonic`).
        """
