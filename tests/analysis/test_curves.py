import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from asyncrl.analysis.curves import common_grid, make_curve, mean_band, moving_average
from asyncrl.analysis.figures import compare, curve_over, group_runs, make_trial, notes
from asyncrl.analysis.records import Run, read_records, read_runs, unique_names
from asyncrl.config.errors import UsageError


def run(tmp_path, records, name="run", **config):
    return Run(name, tmp_path / name, config, tuple(records))


def test_a_curve_is_in_order_and_has_one_value_at_each_position():
    points = [(20, 2.0), (10, 1.0), (20, 5.0)]
    last, first = make_curve(points), make_curve(points, keep="first")
    assert (last.positions.tolist(), last.values.tolist()) == ([10, 20], [1, 5])
    assert first.values.tolist() == [1, 2]


def test_the_grid_has_every_position_within_the_range_that_all_curves_have():
    curves = [make_curve([(0, 0), (10, 0), (30, 0)]), make_curve([(5, 0), (25, 0), (40, 0)])]
    assert common_grid(curves).tolist() == [5, 10, 25, 30]
    assert common_grid([curves[0], make_curve([(30, 1.0)])]).tolist() == [30]
    assert common_grid([curves[0], make_curve([(31, 1.0)])]).tolist() == []


def test_mean_and_deviation_are_over_curves_at_each_position():
    # At 0: 1, 3, 8. At 10: 2, 2, 2. Two positions and three curves, so no axis passes for the other.
    curves = [make_curve([(0, value), (10, 2)]) for value in (1, 3, 8)]
    workers, seeds = mean_band(curves, ddof=0), mean_band(curves, ddof=1)
    assert workers.mean.tolist() == seeds.mean.tolist() == [4, 2]
    assert workers.std is not None and seeds.std is not None
    # (9 + 1 + 16) / 3 of all workers there are, / 2 of a sample of seeds.
    assert workers.std.tolist() == pytest.approx([np.sqrt(26 / 3), 0])
    assert seeds.std.tolist() == pytest.approx([np.sqrt(13), 0])


def test_a_single_curve_has_no_deviation_over_seeds_and_none_to_see_over_workers():
    curve = make_curve([(0, 1), (10, 2)])
    assert mean_band([curve], ddof=1).std is None
    workers = mean_band([curve], ddof=0).std
    assert workers is not None
    assert workers.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("window", "expected"), [(1, [6, 0, 3, 9, 9]), (3, [6, 3, 3, 4, 7]), (100, [6, 3, 3, 4.5, 5.4])]
)
def test_a_moving_average_is_of_a_value_and_those_before_it_and_of_fewer_at_the_start(window, expected):
    assert moving_average(np.array([6.0, 0.0, 3.0, 9.0, 9.0]), window).tolist() == pytest.approx(expected)


def test_workers_are_averaged_at_common_steps_though_they_report_at_different_ones(tmp_path):
    own_steps = {f"worker/{worker}/env_steps": 4 for worker in range(3)}
    records = [
        {**own_steps, "env_steps": 10, "worker/0/ep_rew_mean": 0.0, "rollout/ep_rew_mean": 77.0},
        {**own_steps, "env_steps": 20, "worker/1/ep_rew_mean": 6.0, "worker/0/ep_rew_mean": None},
        {**own_steps, "env_steps": 30, "worker/0/ep_rew_mean": 4.0},
        {**own_steps, "env_steps": 40, "worker/1/ep_rew_mean": 10.0},
    ]
    trial = make_trial(run(tmp_path, records), window=2)
    # Worker 0 is at 2 and 4, worker 1 at 6 and 8; worker 2 has no episode yet.
    assert (trial.unit, trial.members) == ("worker", (0, 1))
    assert trial.returns.positions.tolist() == [20, 30]
    assert trial.returns.mean.tolist() == [4, 6]
    assert trial.returns.std is not None
    assert trial.returns.std.tolist() == [2, 2]
    assert trial.average.tolist() == [4, 5]
    assert notes(run(tmp_path, records), trial)[0] == "run has curves of only 2 of its 3 workers."


@pytest.mark.parametrize(
    ("num_workers", "expected"),
    [((3, 1), [1, 1, 0, 0]), ((1, 3), [0, 0, 1, 1]), ((2, 1, 2), [0.5, 0.5, 0, 0, 0.5, 0.5])],
)
def test_a_run_resumed_with_other_workers_is_drawn_from_its_beginning_to_its_end(tmp_path, num_workers, expected):
    # Worker 0 returns 0, worker 1 1 and worker 2 2; each start of the run has two records.
    records = []
    for number, count in enumerate(each for each in num_workers for _ in range(2)):
        records.append({"env_steps": 10 * number, "rollout/ep_rew_mean": 0.0})
        for worker in range(count):
            own_steps = sum(f"worker/{worker}/env_steps" in record for record in records)
            records[-1] |= {f"worker/{worker}/env_steps": own_steps, f"worker/{worker}/ep_rew_mean": float(worker)}
    one = run(tmp_path, records, num_workers=num_workers[-1])
    trial = make_trial(one, window=1)
    assert trial.returns.positions.tolist() == [10 * number for number in range(len(records))]
    assert trial.returns.mean.tolist() == expected
    assert trial.returns.std is not None and trial.returns.std[expected.index(0)] == 0
    note, of_progress_line = notes(one, trial)
    assert f"the mean is over 1 to {max(num_workers)} workers, at each step over those that have a return" in note
    assert f"return {expected[-1]:.1f} as the mean over workers" in of_progress_line
    if len(num_workers) == 2:  # workers that came or went have made the first steps of their own only
        own = make_trial(one, 1, "per_worker_steps").returns
        assert (own.positions.tolist(), own.mean.tolist()) == ([0, 1, 2, 3], [1, 1, 0, 0])


def test_a_run_resumed_with_more_ranks_is_drawn_from_its_beginning(tmp_path):
    def of_rank(steps, value):
        return tuple({"env_steps": step, "rollout/ep_rew_mean": value} for step in steps)

    first = run(tmp_path, of_rank(range(10, 70, 10), 0.0))
    more = dataclasses.replace(first, other_ranks=(of_rank((45, 60), 4.0),))
    trial = make_trial(more, window=1)
    assert trial.returns.positions.tolist() == [10, 20, 30, 40, 45, 50, 60]
    assert trial.returns.mean.tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert "the mean is over 1 to 2 ranks" in notes(more, trial)[0]

    together = dataclasses.replace(first, other_ranks=(of_rank(range(12, 62, 10), 4.0),))
    trial = make_trial(together, window=1)
    assert (trial.returns.positions[0], trial.returns.positions[-1]) == (12, 52)
    assert set(trial.returns.mean) == {2} and len(notes(together, trial)) == 1


def test_ranks_that_start_together_may_write_their_first_records_seconds_apart(tmp_path):
    dense = [{"env_steps": n, "time/time_elapsed": 3 + n / 10, "rollout/ep_rew_mean": 0.0} for n in range(1, 101)]
    for first_steps, is_together in ((40, True), (60, False)):
        late = run(tmp_path, dense)
        late = dataclasses.replace(late, other_ranks=(tuple(dense[first_steps:]),))
        assert late.lasting_units() == ({0, 1} if is_together else {0})


@pytest.mark.parametrize(("num_records", "window"), [(1, 1), (9, 1), (40, 4), (5000, 100)])
def test_the_window_is_a_part_of_the_records(tmp_path, num_records, window):
    one = run(tmp_path, [{"env_steps": n, "rollout/ep_rew_mean": n} for n in range(num_records)])
    assert make_trial(one, None).window == window


def test_the_return_of_the_progress_line_is_told_apart_from_the_mean_over_workers(tmp_path):
    record = {"env_steps": 5, "worker/0/ep_rew_mean": 1.0, "worker/1/ep_rew_mean": 3.0, "rollout/ep_rew_mean": 2.75}
    one = run(tmp_path, [record], num_workers=2)
    (note,) = notes(one, make_trial(one, None))
    assert "return 2.0 as the mean over workers, each over its last 100 episodes" in note
    assert "the progress line shows 2.8, the mean over the last 100 episodes of all workers" in note


def groups_of(names, pattern=None, **configs):
    """Groups of runs without settings, or with those that are given by name: [group's name, its runs' names]."""
    runs = [Run(name, Path(name), configs.get(name.replace("-", "_"), {}), ()) for name in names]
    return {name: [run.name for run in group] for name, group in group_runs(runs, pattern).items()}


def test_names_that_differ_only_in_their_seed_are_one_group():
    names = ["a_seed0", "b-1", "a_seed12", "b-2", "c-seed3", "d_seed1x", "HalfCheetah-v5", "HalfCheetah-v4"]
    names += ["A_1", "A_2", "lr1e-3", "lr1e-4"]
    assert groups_of(names) == {
        "a": ["a_seed0", "a_seed12"],
        "b": ["b-1", "b-2"],
        "c-seed3": ["c-seed3"],
        "d_seed1x": ["d_seed1x"],
        "HalfCheetah-v5": ["HalfCheetah-v5"],
        "HalfCheetah-v4": ["HalfCheetah-v4"],
        "A": ["A_1", "A_2"],
        "lr1e-3": ["lr1e-3"],
        "lr1e-4": ["lr1e-4"],
    }


def test_runs_that_the_program_named_are_one_group_only_with_the_same_settings():
    names = [f"Ant_ppo_20260102-10111{number}" for number in range(4)]
    settings = [{"gamma": 0.9, "seed": 0}, {"gamma": 0.9, "seed": 1, "quiet": True}, {"gamma": 0.5}, {"gamma": 0.5}]
    configs = {name.replace("-", "_"): config for name, config in zip(names, settings, strict=True)}
    assert groups_of(names, **configs) == {
        "Ant_ppo (gamma=0.9)": names[:2],
        "Ant_ppo (gamma=0.5)": names[2:],
    }
    assert list(groups_of(names[:2], **configs)) == ["Ant_ppo"]


def test_a_name_that_is_the_common_part_of_others_is_in_their_group_only_with_the_same_settings():
    names = ["ppo_64", "ppo_64_seed0", "ppo_64_seed1"]
    sizes = {"ppo_64": {"batch_size": 64}, **{name: {"batch_size": 128} for name in names[1:]}}
    assert groups_of(names, **sizes) == {"ppo_64 (batch_size=64)": names[:1], "ppo_64 (batch_size=128)": names[1:]}
    assert groups_of(names, **{name: {"batch_size": 64} for name in names}) == {"ppo_64": names}


def test_a_pattern_groups_by_what_it_finds():
    names = ["w2_a", "w2_b", "w4_a", "other"]
    assert groups_of(names, re.compile("w[0-9]")) == {"w2": ["w2_a", "w2_b"], "w4": ["w4_a"], "other": ["other"]}
    assert groups_of(names, re.compile("_(.)"))["a"] == ["w2_a", "w4_a"]


def test_an_axis_is_env_steps_or_steps_of_each_worker_or_seconds(tmp_path):
    records = [
        {"env_steps": 100, "time/time_elapsed": 3.0, "rollout/ep_rew_mean": 1.0},
        {"env_steps": 150, "eval/mean_reward": 9.0},
        {"env_steps": 200, "time/time_elapsed": 5.0, "rollout/ep_rew_mean": 2.0},
    ]
    one = run(tmp_path, records, num_workers=4)
    assert curve_over(one, "env_steps", "train").positions.tolist() == [100, 200]
    assert curve_over(one, "per_worker_steps", "train").positions.tolist() == [25, 50]
    assert curve_over(one, "wall_time", "train").positions.tolist() == [3, 5]
    evaluation = curve_over(one, "wall_time", "eval")
    assert (evaluation.positions.tolist(), evaluation.values.tolist()) == ([4], [9])


def test_processor_time_adds_up_the_cores_of_all_ranks(tmp_path):
    def records(cores):
        at = ((100, 2.0), (200, 4.0), (300, 8.0))
        return [
            {"env_steps": steps, "time/time_elapsed": time, "perf/cores_in_use": each, "rollout/ep_rew_mean": steps}
            for (steps, time), each in zip(at, cores, strict=True)
        ]

    one = run(tmp_path, records([1.0, 2.0, 0.5]))
    assert curve_over(one, "processor_time", "train").positions.tolist() == [2, 6, 8]
    two = dataclasses.replace(one, other_ranks=(tuple(records([1.0, 1.0, 1.0])),))
    assert curve_over(two, "processor_time", "train").positions.tolist() == [4, 10, 16]
    without = dataclasses.replace(one, other_ranks=(({"env_steps": 100, "time/time_elapsed": 1.0},),))
    with pytest.raises(UsageError, match="has recorded no perf/cores_in_use"):
        curve_over(without, "processor_time", "train")


def test_a_rank_whose_folder_is_on_another_machine_only_has_no_curve(tmp_path):
    record = {"env_steps": 100, "time/time_elapsed": 1.0, "perf/cores_in_use": 1.0, "rollout/ep_rew_mean": 5.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "environment.json").write_text(json.dumps({"num_ranks": 2}))
    (one,) = read_runs([tmp_path], print)
    assert one.num_ranks == 2 and list(one.returns_by_unit()) == [0]
    assert curve_over(one, "env_steps", "train").values.tolist() == [5.0]
    with pytest.raises(UsageError, match="has recorded no perf/cores_in_use"):
        curve_over(one, "processor_time", "train")
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match=r"has no metrics\.jsonl"):
        read_runs([tmp_path], print)


def test_a_comparison_may_be_of_moving_averages(tmp_path):
    one = run(tmp_path, [{"env_steps": n, "rollout/ep_rew_mean": n * n} for n in (0, 1, 2, 3)])
    (group,) = compare([one], "env_steps", "train", None, smooth=2).groups
    assert (group.band.positions.tolist(), group.band.mean.tolist()) == ([1, 2, 3], [0.5, 2.5, 6.5])
    with pytest.raises(UsageError, match="--smooth=5 is more than the 4 records of run"):
        compare([one], "env_steps", "train", None, smooth=5)


def test_a_total_that_stood_still_is_timed_when_it_was_reached(tmp_path):
    records = [{"env_steps": steps, "time/time_elapsed": at} for steps, at in ((10, 1.0), (20, 2.0), (20, 60.0))]
    assert run(tmp_path, records).elapsed().values.tolist() == [1, 2]


def test_steps_of_each_worker_need_the_number_of_workers(tmp_path):
    record = {"env_steps": 100, "rollout/ep_rew_mean": 1.0}
    with pytest.raises(UsageError, match="number of workers of run is unknown"):
        curve_over(run(tmp_path, [record], num_workers="auto"), "per_worker_steps", "train")
    counted = run(tmp_path, [{**record, "worker/0/env_steps": 4, "worker/1/ep_rew_mean": 1.0}], num_workers="auto")
    assert counted.num_workers == 2
    assert run(tmp_path, [{**record, "worker/0/env_steps": 4}], num_workers=8).num_workers == 8
    assert Run("run", tmp_path, {"num_workers": "auto"}, (record,), recorded_workers=3).num_workers == 3


def test_a_group_is_averaged_where_all_its_runs_have_values(tmp_path):
    first = run(tmp_path, [{"env_steps": n, "rollout/ep_rew_mean": n} for n in (0, 10, 20)], "a_seed0")
    second = run(tmp_path, [{"env_steps": n, "rollout/ep_rew_mean": n + 4} for n in (10, 30)], "a_seed1")
    (group,) = compare([first, second], "env_steps", "train", None).groups
    assert (group.name, group.runs) == ("a", ("a_seed0", "a_seed1"))
    assert (group.band.positions.tolist(), group.band.mean.tolist()) == ([10, 20], [12, 22])
    assert group.band.std is not None
    assert group.band.std.tolist() == pytest.approx([np.sqrt(8)] * 2)


def test_runs_that_never_overlap_have_no_mean(tmp_path):
    runs = [run(tmp_path, [{"env_steps": n, "rollout/ep_rew_mean": 1}], f"a-{n}") for n in (1, 2)]
    with pytest.raises(UsageError, match="a-1, a-2 have no range in common"):
        compare(runs, "env_steps", "train", None)


def test_only_a_last_line_may_be_cut(tmp_path):
    whole, cut, path = '{"env_steps": 1}\n', '{"env_st', tmp_path / "x"
    assert read_records(path) == ()
    for text, found in ((whole + cut, ({"env_steps": 1},)), ("", ())):
        path.write_text(text)
        assert read_records(path) == found
    for broken in (cut, "7", '{"a": 1}', '{"env_steps": null}', ""):
        path.write_text(f"{broken}\n{whole}")
        with pytest.raises(UsageError, match=r"Line 1 of .*x is not a record"):
            read_records(path)


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    assert unique_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert unique_names([tmp_path / "a" / "x", tmp_path / "b" / "y"]) == ["x", "y"]
