"""The state of a learner in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a process that only passes settings on needs no torch
    from torch import Tensor

Scalar = int | float


@dataclass(frozen=True)
class LearnerState:
    """The complete state of a learner, as checkpoints store it.

    Attributes:
        model: parameters by name and the newest `statistics`, for `ActorCritic.load_state_dict`.
        optimizer: Adam's moments, running moments and the states of random generators.
        scalars: numbers that JSON stores exactly.
        is_whole: False if the state is of other networks, or of a policy alone (`asyncrl.learner.transfer`).
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, Scalar]
    is_whole: bool = True


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU that share no memory with the tensors or with one another."""
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
