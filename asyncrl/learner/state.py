"""What continues a learner."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Scalar = int | float


@dataclass(frozen=True)
class LearnerState:
    """All that continues a learner, in the form in which checkpoints keep it.

    Attributes:
        model: parameters by name, and the newest `statistics`; what `ActorCritic.load_state_dict` takes.
        optimizer: Adam's moments, running moments and the state of the shuffling generator.
        scalars: numbers that JSON keeps exactly.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    scalars: dict[str, Scalar]
