"""Statistics over seeds: medians and bootstrap intervals.

A value that was never reached (censored) is infinite, so it is larger than any other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 10_000


@dataclass(frozen=True)
class Spread:
    """Values of one figure over seeds.

    Attributes:
        values: one for each seed; infinite where the figure was censored.
        median: their median; infinite if at least half of them are censored.
        low, high: 95 % bootstrap interval of the median; None for a single value.
    """

    values: tuple[float, ...]
    median: float
    low: float | None
    high: float | None

    @property
    def num_censored(self) -> int:
        """Number of infinite values."""
        return sum(math.isinf(value) for value in self.values)


def spread(values: Sequence[float]) -> Spread:
    """Returns the median of one figure over seeds with its interval, the percentiles of the medians of resamples.

    The median of an even count is the mean of the two values in the middle, infinite if the upper one is.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    median = float(statistics.median(values))
    if len(values) == 1:
        return Spread(tuple(values), median, None, None)
    drawn = sorted_resamples([values])
    medians = (drawn[:, (len(values) - 1) // 2] + drawn[:, len(values) // 2]) / 2
    return Spread(tuple(values), median, *percentiles(medians))


def first_reached(curve: Sequence[tuple[float, float]], threshold: float) -> float:
    """Returns the first position at which a curve of (position, value) reaches a threshold; infinity if none does."""
    return next((position for position, value in curve if value >= threshold), math.inf)


def uniform_lag(num_updates: int) -> tuple[float, float, int]:
    """Returns mean, 95th percentile and maximum of the policy lag that samples gain inside one dataset.

    Each of the dataset's `num_updates` optimizer steps uses equally many samples, the first at lag 0.
    """
    ages = np.arange(num_updates)
    return float(ages.mean()), float(np.percentile(ages, 95)), num_updates - 1


def sorted_resamples(groups: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Draws as many values from each group as it has, with replacement: [NUM_RESAMPLES, all values], rows sorted.

    The seed is fixed, so that a report is reproducible. Source: Efron and Tibshirani, An Introduction to the Bootstrap,
    chapter 13.
    """
    generator = np.random.default_rng(0)
    indices = [generator.integers(0, len(values), size=(NUM_RESAMPLES, len(values))) for values in groups]
    drawn = [np.asarray(values, dtype=np.float64)[idx] for values, idx in zip(groups, indices, strict=True)]
    return np.sort(np.concatenate(drawn, axis=1), axis=1)


def percentiles(estimates: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Returns the 95 % interval by rank: interpolation between a number and infinity has no meaning."""
    low, high = np.quantile(estimates, (0.025, 0.975), method="nearest")
    return float(low), float(high)
