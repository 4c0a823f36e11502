"""Seeds of random streams.

With sums such as `seed + rank`, rank 1 of a run would draw the same numbers as rank 0 of a run with the next seed.

asyncrl draws from generators of its own. The global generators of Python, NumPy and PyTorch belong to the user's code:
each process seeds them before it makes an environment.
"""

from __future__ import annotations

import contextlib
import enum
import random
import sys
from collections.abc import Iterator, Sequence

import numpy as np


class Stream(enum.IntEnum):
    """What random numbers are drawn for. Environments and actors have seeds by number, see `asyncrl.envs.factory`.

    A feature has its own number: 10 is taken.
    """

    RANK = 0
    LEARNER = 1
    REPLAY = 2
    CRITIC_WEIGHTS = 3
    WARM_UP = 4
    EVALUATION = 5
    SECOND_ATTEMPT = 6
    POLICY_MAPPING = 7
    OBSERVER = 8
    EXPLORATION = 9
    ATTEMPT = 11
    GLOBAL = 12
    SPACES = 13


def derive_seed(seed: int, stream: int, number: int = 0) -> int:
    """Returns a 32-bit seed derived from all arguments (NumPy's `SeedSequence`)."""
    return _seed_of(seed, stream, number)


def rank_seed(seed: int, rank: int) -> int:
    """Returns the seed of a rank's private random numbers: the run's for rank 0, a derived one for others."""
    return seed if rank == 0 else derive_seed(seed, Stream.RANK, rank)


def attempt_seed(seed: int, attempts: Sequence[int]) -> int:
    """Returns the seed of a process that was restarted: `seed` itself for the first attempt, whose numbers are 0."""
    return _seed_of(seed, Stream.ATTEMPT, *attempts) if any(attempts) else seed


def role_seed(seed: int, role: str, index: int = 0, env_steps: int = 0) -> int:
    """Returns the seed of the global generators in the process of a role.

    Args:
        seed: the run's, of this attempt.
        role: such as `rollout`.
        index: number of the process among those of its role.
        env_steps: environment steps of the run when the process started.
    """
    return _seed_of(seed, Stream.GLOBAL, index, env_steps, *role.encode())


def seed_global_generators(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and PyTorch (of the CPU and of all GPUs; if it was imported)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


@contextlib.contextmanager
def restoring_global_generators() -> Iterator[None]:
    """Restores the global generators of Python, NumPy and PyTorch at its end."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    generators = [] if torch is None else [torch.default_generator, *torch.cuda.default_generators]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if torch is not None and len(generators) == 1:  # GPUs that nobody had used would keep the seed of meanwhile
            torch.cuda.manual_seed_all(torch.initial_seed())


def _seed_of(seed: int, *key: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])
