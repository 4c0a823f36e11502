"""Seeds of random streams.

With sums such as `seed + rank`, rank 1 of a run would draw the same numbers as rank 0 of a run with the next seed.
"""

from __future__ import annotations

import enum

import numpy as np


class Stream(enum.IntEnum):
    """What random numbers are drawn for. Environments and actors have seeds by number, see `asyncrl.envs.factory`."""

    RANK = 0
    LEARNER = 1
    REPLAY = 2
    CRITIC_WEIGHTS = 3
    WARM_UP = 4
    EVALUATION = 5
    SECOND_ATTEMPT = 6
    POLICY_MAPPING = 7
    POPULATION = 8
    EXPLORATION = 9
    HINDSIGHT = 10


def derive_seed(seed: int, stream: Stream, number: int = 0) -> int:
    """Returns a 32-bit seed derived from all arguments (NumPy's `SeedSequence`)."""
    return int(np.random.SeedSequence(seed, spawn_key=(stream, number)).generate_state(1)[0])


def rank_seed(seed: int, rank: int) -> int:
    """Returns the seed of a rank's private random numbers: the run's for rank 0, a derived one for others."""
    return seed if rank == 0 else derive_seed(seed, Stream.RANK, rank)
