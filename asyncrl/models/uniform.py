"""Actions drawn uniformly from the whole range, which fill a replay before the first update."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.buffers.inference_buffer import ActorOutput
from asyncrl.envs.observations import split_rows
from asyncrl.envs.spec import ObservationLayout
from asyncrl.models.distributions import ActionDistribution, ActionParts, Categorical
from asyncrl.processes.seeding import Stream, derive_seed

LARGEST_UNIT = np.float32(1.0 - 2.0**-24)
"""The largest squashed number, whose arctanh is finite."""


def raw_of_unit(unit: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Stored actions for squashed ones, which are clipped to within [-1, 1]."""
    raw: npt.NDArray[np.float32] = np.arctanh(np.clip(unit, -LARGEST_UNIT, LARGEST_UNIT))
    return raw


class UniformPolicy:
    """Draws uniformly within the bounds of squashed actions and among allowed choices; `layout` is for masks."""

    def __init__(self, distribution: ActionDistribution, seed: int, layout: ObservationLayout | None = None) -> None:
        self._distribution = distribution
        self._generator = np.random.Generator(np.random.SFC64(derive_seed(seed, Stream.WARM_UP)))
        self._layout = layout if layout is not None and layout.num_mask else None
        self._continuous = ActionParts(distribution).columns

    def act(self, obs: npt.NDArray[Any], rnn_state: npt.NDArray[np.float32] | None = None) -> ActorOutput:
        """Draws actions for rows of observations `[B, row_size]`, of which only masks are read."""
        distribution, size = self._distribution, len(obs)
        if isinstance(distribution, Categorical) and self._layout is None:
            return ActorOutput(self._generator.integers(distribution.num_parameters, size=size))
        unit = self._generator.uniform(-LARGEST_UNIT, LARGEST_UNIT, size=(size, len(self._continuous))).astype(
            np.float32
        )
        raw = raw_of_unit(unit)
        if distribution.num_logits == 0:
            return ActorOutput(raw)
        mask = None
        if self._layout is not None:
            mask = split_rows(self._layout, obs)[0][:, self._layout.num_features :]
        equal = np.zeros((size, distribution.num_parameters), np.float32)
        action = distribution.sample_arrays(distribution.parameter_arrays_of(equal, None, mask), self._generator).action
        if self._continuous:
            action[:, self._continuous] = raw
        return ActorOutput(action)
