"""Where the observations of splits wait for actions, and what a policy answers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt


class ActorOutput(Protocol):
    """What any policy returns for `[B]` observations: actions `[B, A]` float32 or `[B]` int64, as they were sampled."""

    @property
    def action(self) -> npt.NDArray[Any]: ...


class ActorCriticOutput(ActorOutput, Protocol):
    """What a policy with a critic returns, for trajectories.

    Attributes:
        log_prob: [B] float32, of exactly that action.
        value: [B] float32, in units of rewards.
        action_parameters: [B, P] float32, parameters of the action's distribution.
        rnn_state: [B, S] float32, recurrent states after the observations; not read where S is 0.
    """

    @property
    def log_prob(self) -> npt.NDArray[Any]: ...

    @property
    def value(self) -> npt.NDArray[Any]: ...

    @property
    def action_parameters(self) -> npt.NDArray[Any]: ...

    @property
    def rnn_state(self) -> npt.NDArray[Any]: ...


class InferenceBuffer(Protocol):
    """Slots of trajectories, or stripes of the replay. A place is a pair of numbers: (slot, row), or (split, row)."""

    @property
    def num_envs(self) -> int:
        """Environments of a split E."""

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the observations `[E, row_size]` of a place, and the recurrent states `[E, S]` before them."""

    def answer(self, place: tuple[int, int], envs: slice, answer: Any, version: int, now: float) -> None:
        """Writes a policy's answer beside the observations of a place.

        Args:
            place: whose observations were answered.
            envs: the split's part of the batch.
            answer: an `ActorOutput`; slots need an `ActorCriticOutput`.
            version: policy version of the answer.
            now: time of the answer (`time.monotonic`).
        """
