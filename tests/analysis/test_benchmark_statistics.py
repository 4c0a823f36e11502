import math
from itertools import product
from statistics import median

import pytest

from asyncrl.analysis.statistics import first_reached, spread, uniform_lag

REACHED_NEVER = math.inf


def test_the_interval_is_that_of_all_resamples():
    values = [3.0, 1.0, 10.0]
    # All 27 resamples are equally likely. 7 of them have median 1, so the 2.5 % point is 1; 7 have median 10.
    medians = [median(sample) for sample in product(values, repeat=3)]
    assert (medians.count(1.0), medians.count(10.0)) == (7, 7)
    found = spread(values)
    assert (found.median, found.low, found.high) == (3.0, 1.0, 10.0)


def test_the_interval_of_many_values_leaves_out_the_extremes():
    found = spread([float(value) for value in range(1, 102)])
    assert found.median == 51.0
    # The distribution-free interval of the median by binomial ranks is [41, 61] here.
    assert 39 <= found.low <= 43
    assert 59 <= found.high <= 63
    assert spread(list(found.values)) == found, "a report repeats"


def test_a_single_seed_has_no_interval():
    found = spread([4.0])
    assert (found.median, found.low, found.high) == (4.0, None, None)


def test_censored_values_are_later_than_all_others():
    found = spread([5.0, REACHED_NEVER, 7.0])
    assert (found.median, found.num_censored) == (7.0, 1)
    assert (found.low, found.high) == (5.0, math.inf)
    assert spread([5.0, REACHED_NEVER]).median == math.inf
    assert spread([5.0, 6.0, REACHED_NEVER, REACHED_NEVER]).median == math.inf
    assert not math.isnan(spread([REACHED_NEVER, REACHED_NEVER]).low)


def test_a_threshold_is_reached_at_the_first_value_that_is_not_less():
    curve = [(10.0, 1.0), (20.0, 5.0), (30.0, 2.0), (40.0, 9.0)]
    assert first_reached(curve, 5.0) == 20.0
    assert first_reached(curve, 5.1) == 40.0
    assert first_reached(curve, 9.1) == math.inf
    assert first_reached([], 0.0) == math.inf


def test_age_inside_a_dataset_of_five_updates():
    assert uniform_lag(5) == (2.0, pytest.approx(3.8), 4)
    assert uniform_lag(1) == (0.0, 0.0, 0)
