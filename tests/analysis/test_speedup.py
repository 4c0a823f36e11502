from pathlib import Path

import pytest

from asyncrl.analysis.figures import measure_speedup, speed_of, unexpected_differences
from asyncrl.analysis.records import Run
from asyncrl.config.errors import UsageError


def timed(name, num_workers, *points):
    records = tuple({"env_steps": steps, "time/time_elapsed": seconds} for seconds, steps in points)
    return Run(name, Path(name), {"num_workers": num_workers}, records)


def steady(name, num_workers, steps_per_s, total, startup_s=0.0):
    """A run that steps evenly once it has started, with its first record after a tenth of its steps."""
    points = [(startup_s + share * total / steps_per_s, share * total) for share in (0.1, 0.6, 1.0)]
    return timed(name, num_workers, *points)


@pytest.mark.parametrize(
    ("fewest", "most", "common_env_steps", "speedup", "efficiency"),
    [
        (steady("one", 1, 100, 1000), steady("two", 2, 150, 1000), 1000, 1.5, 0.75),
        (steady("two", 2, 100, 600), steady("six", 6, 240, 600), 600, 2.4, 0.8),
        # Four times as long and twice as fast: the raw times, 10 s and 20 s, would say half as fast.
        (steady("short", 1, 100, 1000), steady("long", 2, 200, 4000), 1000, 2.0, 1.0),
        # Slow after the common total only.
        (timed("a", 1, (1, 100), (9, 900)), timed("b", 2, (1, 100), (3, 500), (5, 900), (105, 1000)), 900, 2.0, 1.0),
        # Start-up does not count.
        (steady("a", 1, 100, 1000, startup_s=2), steady("b", 2, 200, 1000, startup_s=50), 1000, 2.0, 1.0),
    ],
)
def test_a_speedup_is_that_to_the_smallest_total_without_startup(fewest, most, common_env_steps, speedup, efficiency):
    result = measure_speedup([most, fewest])
    assert (result.common_env_steps, result.base_count) == (common_env_steps, fewest.num_workers)
    base, found = result.runs
    assert (base.run, base.speedup, base.efficiency) == (fewest.name, pytest.approx(1.0), pytest.approx(1.0))
    assert (found.run, found.speedup, found.efficiency) == (
        most.name, pytest.approx(speedup), pytest.approx(efficiency)
    )  # fmt: skip
    assert found.total_env_steps == most.records[-1]["env_steps"]
    assert found.seconds == pytest.approx(common_env_steps / found.env_steps_per_s)


def test_a_speed_begins_with_the_first_trained_step_and_ends_at_the_common_total():
    assert speed_of(timed("a", 1, (5, 0), (30, 100), (40, 300)), 300) == pytest.approx(20)
    # 100 steps in the first interval's second, and 50 of the 400 that the second one takes 4 s for.
    assert speed_of(timed("a", 1, (1, 100), (2, 200), (6, 600)), 250) == pytest.approx(150 / 1.5)


def test_several_runs_of_a_count_have_median_and_range():
    runs = [steady("a", 1, 100, 1000), steady("b", 1, 50, 1000), steady("c", 1, 200, 1000)]
    runs += [steady("d", 4, 300, 1000), steady("e", 4, 200, 1000)]
    result = measure_speedup(runs)
    # The measure is the median of 10, 20 and 5 seconds.
    one, four = result.counts
    assert (one.speedup.median, one.speedup.low, one.speedup.high) == pytest.approx((1.0, 0.5, 2.0))
    assert (four.num_runs, four.ideal) == (2, 4)
    assert (four.speedup.median, four.speedup.low, four.speedup.high) == pytest.approx((2.5, 2.0, 3.0))
    assert (four.efficiency.median, four.efficiency.low, four.efficiency.high) == pytest.approx((0.625, 0.5, 0.75))
    lines = result.table().splitlines()
    assert lines[0] == "time to 1,000 environment steps, start-up excluded, against 1 worker:"
    assert lines[3].split("  ")[-1].strip() == "62.5% (50.0% to 75.0%)"


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        (
            [steady("a", 2, 1, 10), steady("b", 2, 1, 10)],
            "at least two numbers of workers or ranks, but all have 2 workers",
        ),
        (
            [steady("a", 1, 1, 10), steady("b", 2, 1, 10_000)],
            "it has no record before 10 environment steps",
        ),
        ([steady("a", 1, 1, 10), timed("b", 2)], "b has recorded no time/time_elapsed"),
        (
            [timed("a", 1, (1, 10), (1, 20)), steady("b", 2, 1, 20)],
            "of a cannot be measured: the times in its records",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(runs, problem):
    with pytest.raises(UsageError, match=problem):
        measure_speedup(runs)


def test_only_runs_of_one_experiment_are_measured(tmp_path):
    runs = [Run(f"r{n}", tmp_path, {"env": env, "num_workers": n}, ()) for n, env in ((1, "A-v1"), (2, "B-v1"))]
    with pytest.raises(UsageError, match="env differs: r1 has A-v1, r2 has B-v1"):
        measure_speedup(runs)
    with pytest.raises(UsageError, match="number of workers of r is unknown"):
        measure_speedup([Run("r", tmp_path, {"num_workers": "auto"}, ())])


def test_runs_are_compared_by_their_ranks_where_these_differ(tmp_path):
    records = tuple({"env_steps": steps, "time/time_elapsed": steps / 100} for steps in (100, 1000))
    twice = tuple({"env_steps": steps, "time/time_elapsed": steps / 150} for steps in (100, 1000))
    config = {"env": "A-v1", "num_workers": 3}
    one, two = Run("one", tmp_path, config, records), Run("two", tmp_path, config, twice, other_ranks=(twice,))
    result = measure_speedup([one, two])
    assert [(run.run, run.count) for run in result.runs] == [("one", 1), ("two", 2)]
    assert (result.unit, result.base_count) == ("rank", 1)
    assert result.runs[1].efficiency == pytest.approx(0.75)
    assert "against 1 rank:" in result.table()
    # As many ranks, each with more workers: their workers count, all of them.
    more = Run("more", tmp_path, {**config, "num_workers": 6}, twice, other_ranks=(twice,))
    assert [run.count for run in measure_speedup([two, more]).runs] == [6, 12]
    assert unexpected_differences([two, more]) == []
    assert unexpected_differences([one, more]) == ["num_workers"]


def test_settings_that_differ_besides_the_workers_are_named(tmp_path):
    settings = ({"num_workers": 1, "seed": 0, "rollout": 8}, {"num_workers": 2, "seed": 1, "rollout": 16}, {})
    assert unexpected_differences([Run("r", tmp_path, config, ()) for config in settings]) == ["rollout"]
