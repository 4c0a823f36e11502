"""Medians over seeds and how sure they are. A value that was never reached is infinite: it is larger than any other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 10_000
_QUANTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Spread:
    """Values of one figure over seeds.

    Attributes:
        values: one for each seed; infinite where the figure was censored.
        median: their median; infinite if at least half of them are censored.
        low, high: 95 % bootstrap interval of the median, None for a single value.
    """

    values: tuple[float, ...]
    median: float
    low: float | None
    high: float | None

    @property
    def num_censored(self) -> int:
        """How many values are infinite."""
        return sum(math.isinf(value) for value in self.values)


def spread(values: Sequence[float]) -> Spread:
    """Sums up one figure over seeds; infinite values stand for what was not reached.

    The interval takes percentiles of the medians of resamples drawn with replacement (Efron and Tibshirani, An
    Introduction to the Bootstrap, chapter 13), with a fixed seed, so that a report repeats. Its ends and the median are
    values or means of two values, so that infinite ones stay infinite.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    median = median_of(values)
    if len(values) == 1:
        return Spread(tuple(values), median, None, None)
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    draws = np.random.default_rng(0).integers(0, len(values), size=(NUM_RESAMPLES, len(values)))
    draws.sort(axis=1)
    lower, upper = ordered[draws[:, (len(values) - 1) // 2]], ordered[draws[:, len(values) // 2]]
    medians = np.sort((lower + upper) / 2)
    # Percentiles by rank: interpolation between a number and infinity has no meaning.
    low, high = (float(medians[_rank(quantile)]) for quantile in _QUANTILES)
    return Spread(tuple(values), median, low, high)


def median_of(values: Sequence[float]) -> float:
    """Returns the median; with an even count the mean of the two in the middle, infinite if the upper one is."""
    return float(statistics.median(values))


def first_reached(curve: Sequence[tuple[float, float]], threshold: float) -> float:
    """Returns the position at which a curve first comes to a threshold.

    Args:
        curve: pairs of position (steps or seconds) and value, in the order of the positions.
        threshold: the value to reach.

    Returns:
        The position; infinite if the curve ends before, which is all that a censored run tells.
    """
    return next((position for position, value in curve if value >= threshold), math.inf)


def uniform_lag(num_updates: int) -> tuple[float, float, int]:
    """Returns mean, 95th percentile and maximum of the versions by which samples age inside one dataset.

    Each of the dataset's `num_updates` optimizer steps uses equally many samples, the first after 0 versions.
    """
    ages = np.arange(num_updates)
    return float(ages.mean()), float(np.percentile(ages, 95)), num_updates - 1


def _rank(percentile: float) -> int:
    return round((NUM_RESAMPLES - 1) * percentile / 100)
