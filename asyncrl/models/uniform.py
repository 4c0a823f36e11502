"""Actions drawn uniformly from the whole range: how a replay is filled before anything was learned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from asyncrl.models.distributions import ActionDistribution, Categorical
from asyncrl.runtime.seeding import Stream, derive_seed

FloatArray = npt.NDArray[np.float32]
_LARGEST = np.float32(1.0 - 2.0**-24)  # its arctanh is finite


class UniformAnswer(NamedTuple):
    """Actions `[B, A]` or `[B]` in the form in which the distribution produces them; nothing else is known of them."""

    action: npt.NDArray[Any]


class UniformPolicy:
    """Acts without looking: on squashed actions uniformly in their bounds, on choices uniformly among them."""

    def __init__(self, distribution: ActionDistribution, seed: int) -> None:
        """Draws what `distribution` would, from a random generator of its own."""
        self._distribution = distribution
        self._generator = np.random.Generator(np.random.SFC64(derive_seed(seed, Stream.WARM_UP)))

    def act(self, obs: npt.NDArray[Any]) -> UniformAnswer:
        """Choose actions for `[B, D]` observations."""
        if isinstance(self._distribution, Categorical):
            return UniformAnswer(self._generator.integers(self._distribution.num_parameters, size=len(obs)))
        shape = (len(obs), *self._distribution.action_shape)
        unit = self._generator.uniform(-_LARGEST, _LARGEST, size=shape).astype(np.float32)
        return UniformAnswer(np.arctanh(np.clip(unit, -_LARGEST, _LARGEST)))
