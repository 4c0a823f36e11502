"""Curves on a common axis: interpolation, mean and standard deviation over several, moving average."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Values, [N], at strictly increasing positions, [N]: environment steps or seconds."""

    positions: Array
    values: Array

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Band:
    """Mean over several curves, [G], and standard deviation over them; None for a single curve."""

    positions: Array
    mean: Array
    std: Array | None


def make_curve(points: Iterable[tuple[float, float]], keep: Literal["first", "last"] = "last") -> Curve:
    """Sorts points by position; of several points at one position, the first or the last given point is kept."""
    found = list(points)
    by_position = sorted(dict(found if keep == "last" else reversed(found)).items())
    positions, values = np.array(by_position, dtype=np.float64).reshape(-1, 2).T
    return Curve(positions, values)


def common_grid(curves: Sequence[Curve]) -> Array:
    """Returns the positions of all curves within their common range, with its ends; empty without a common range.

    Between two neighbours of the grid each curve is a straight line, so the mean over the curves is exact there.
    """
    low = max(curve.positions[0] for curve in curves)
    high = min(curve.positions[-1] for curve in curves)
    positions = np.unique(np.concatenate([curve.positions for curve in curves]))
    within: Array = positions[(positions >= low) & (positions <= high)]
    return within


def interpolate(curves: Sequence[Curve], grid: Array) -> Array:
    """Returns each curve's values at the positions of a grid, by linear interpolation: [C, G] float64."""
    return np.stack([np.interp(grid, curve.positions, curve.values) for curve in curves])


def mean_band(curves: Sequence[Curve], ddof: Literal[0, 1]) -> Band:
    """Returns mean and standard deviation over curves, where all of them have values.

    Args:
        curves: at least one, each with at least one point.
        ddof: 0 if the curves are the whole population, such as a run's workers; 1 if they are a sample, such as seeds.
    """
    grid = common_grid(curves)
    values = interpolate(curves, grid)
    std = None if len(curves) <= ddof else values.std(axis=0, ddof=ddof)
    return Band(grid, values.mean(axis=0), std)


def moving_average(values: Array, window: int) -> Array:
    """Returns the mean of each value and the `window - 1` before it, or of the fewer there are: [N] float64."""
    if window < 1:
        raise ValueError(f"a moving average needs a window of at least 1 value, not {window}")
    ends = range(1, len(values) + 1)
    return np.array([values[max(0, end - window) : end].mean() for end in ends], dtype=np.float64)
