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
    """Values, [N], at strictly increasing positions, [N]: environment steps or seconds.

    A NaN leaves a gap between its two neighbours.
    """

    positions: Array
    values: Array

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Band:
    """Mean over several curves, [G], and standard deviation over them; None for a single curve.

    `counts`, [G], are the numbers of curves that have a value; None if they were not counted.
    """

    positions: Array
    mean: Array
    std: Array | None
    counts: Array | None = None


def make_curve(points: Iterable[tuple[float, float]], keep: Literal["first", "last"] = "last") -> Curve:
    """Sorts points by position; of several points at one position, the first or the last given point is kept."""
    found = list(points)
    by_position = sorted(dict(found if keep == "last" else reversed(found)).items())
    positions, values = np.array(by_position, dtype=np.float64).reshape(-1, 2).T
    return Curve(positions, values)


def common_grid(curves: Sequence[Curve], within: Sequence[Curve] | None = None) -> Array:
    """Returns the positions of all curves within the common range of `within`, with its ends; empty without a range.

    By default `within` is all curves. Between two neighbours of the grid each curve is a straight line, so the mean
    over the curves is exact there.
    """
    low = max(curve.positions[0] for curve in within or curves)
    high = min(curve.positions[-1] for curve in within or curves)
    positions = np.unique(np.concatenate([curve.positions for curve in curves]))
    grid: Array = positions[(positions >= low) & (positions <= high)]
    return grid


def mean_band(curves: Sequence[Curve], ddof: Literal[0, 1], within: Sequence[Curve] | None = None) -> Band:
    """Returns mean and standard deviation over curves, at each position over those that have a value there.

    Args:
        curves: at least one, each with at least one point.
        ddof: 0 if the curves are the whole population, such as a run's workers; 1 if they are a sample, such as seeds.
        within: the curves whose common range is shown; by default all of them.
    """
    grid = common_grid(curves, within)
    # [C, G], NaN before the first point of a curve and after its last one
    values = np.stack([np.interp(grid, each.positions, each.values, left=np.nan, right=np.nan) for each in curves])
    counts = np.isfinite(values).sum(axis=0)
    grid, values, counts = grid[counts > 0], values[:, counts > 0], counts[counts > 0]
    std = None if len(curves) <= ddof else np.nanstd(values, axis=0, ddof=ddof)
    return Band(grid, np.nanmean(values, axis=0), std, counts)


def moving_average(values: Array, window: int) -> Array:
    """Returns the mean of each value and the `window - 1` before it, or of the fewer there are: [N] float64."""
    ends = range(1, len(values) + 1)
    return np.array([values[max(0, end - window) : end].mean() for end in ends], dtype=np.float64)
