"""What passes between a policy and the places where observations wait for it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt


class ActionAnswer(Protocol):
    """What any policy says of `[B]` observations: actions `[B, A]` float32 or `[B]` int64, as they were drawn."""

    @property
    def action(self) -> npt.NDArray[Any]:
        """The actions."""


class CriticizedAnswer(ActionAnswer, Protocol):
    """What a policy with a critic says, for trajectories."""

    @property
    def log_prob(self) -> npt.NDArray[Any]:
        """[B] float32, of exactly that action."""

    @property
    def value(self) -> npt.NDArray[Any]:
        """[B] float32, in units of rewards."""

    @property
    def action_parameters(self) -> npt.NDArray[Any]:
        """[B, P] float32."""

    @property
    def rnn_state(self) -> npt.NDArray[Any]:
        """[B, S] float32, recurrent states after the observations; not read where S is 0."""


class ObservationDesk(Protocol):
    """Where observations of splits wait for actions: slots of trajectories, or stripes of the replay.

    A place is a pair of numbers: (slot, row), or (split, row).
    """

    @property
    def num_envs(self) -> int:
        """Environments of a split E."""

    def inputs_at(self, place: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The observations `[E, row_size]` that wait there, and the recurrent states `[E, S]` before them."""

    def answer(self, place: tuple[int, int], envs: slice, answer: Any, version: int, now: float) -> None:
        """Writes the split's part `envs` of a policy's answer where the split looks for it.

        The answer is an `ActionAnswer`, or what else the desk needs: slots take a `CriticizedAnswer`.
        """
