"""Layouts of observations."""

from __future__ import annotations

from asyncrl.envs.spec import ObservationLayout, ObservationPart


def vector_observation(size: int, dtype: str = "float32") -> ObservationLayout:
    """The layout of a Box of one dimension."""
    return ObservationLayout((ObservationPart((), "numbers", (size,), dtype),))
