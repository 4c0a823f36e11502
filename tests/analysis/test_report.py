import importlib.util
import json

import pytest

from asyncrl.analysis.benchmark.report import Plots, draw_plots, to_markdown
from asyncrl.analysis.benchmark.results import common_thresholds, summarize
from asyncrl.analysis.benchmark.variants import Layout, Task, Variant

LAYOUT = Layout(2, 32)
SYNC, ASYNC = Variant("sync", "local", LAYOUT), Variant("async", "local", LAYOUT)
ABOUT = {
    "env": "Walker-v9",
    "policy": None,
    "thresholds": (100.0, 900.0),
    "warm_up_s": 25.0,
    "measure_s": 30.0,
    "updates_per_dataset": 5,
    "code": ["0123abc"],
    "provenance": {
        "command": ["asyncrl benchmark", "--env=Walker-v9"],
        "python": "3.11.7",
        "packages": {"torch": "9.9.9"},
        "machine": {"cpu": "Abacus", "usable_cores": 2, "memory_bytes": 2**34, "device": "cpu"},
    },
}


def throughput(fps, **shares):
    return {
        "window_s": 30.0,
        "window_env_steps": 300,
        "env_steps_per_s": fps,
        "sgd_steps_per_s": 12.34,
        "learner_samples_per_s": 2 * fps,
        "samples_per_env_step": 1.5,
        "dropped_share": 0.25,
        "cpu_s_per_million_steps": 321.0,
        "peak_pss_bytes": 512 * 1024 * 1024,
        "peak_rss_bytes": 1024 * 1024 * 1024,
        "startup_s": 3.21,
        "lag": {"lag/mean": 7.5, "lag/max": 8.0, "lag/age_ms": 432.1},
        "shares": {name.replace("__", "/"): share for name, share in shares.items()},
        "lag_records": [[7.0, 8.0, 8.0], [8.0, 8.0, 8.0]],
    }


def learned(curve, evaluated=None, rates=(None, None), other_curves=()):
    steps, seconds, final = curve[-1] if curve else (30, 3.5, 1.0)
    return {
        "env_steps": int(steps),
        "wall_s": seconds,
        "final_return": final,
        "evaluated_return": evaluated,
        "curve": curve,
        "env_steps_per_s": rates[0],
        "sgd_steps_per_s": rates[1],
        "other_curves": list(other_curves),
    }


def measured():
    """Async runs at 80 % and 60 % of the simulation of their rounds, though at 4 % and 300 % of the other's."""
    figures = {}
    for seed, rate, share in ((0, 1000.0, 0.8), (1, 50.0, 0.6)):
        figures[Task("simulation", "2 x 32", seed, (), ())] = {"env_steps_per_s": rate, "replayed": False}
        figures[Task("throughput", ASYNC.name, seed, (), ())] = throughput(
            rate * share, perf__learner_busy=0.875, profile__rollout__step=0.625
        )
    curve = [[10.0, 1.0, 50.0], [20.0, 2.0, 150.0], [30.0, 3.0, 120.0]]
    for seed, values in enumerate([curve, curve, [[10.0, 1.0, 40.0]]]):
        figures[Task("learning", SYNC.name, seed, (), ())] = learned(values, 111.0) | {"env_steps": 30, "wall_s": 3.5}
    return figures


def results():
    return summarize(ABOUT, [SYNC, ASYNC], measured(), {"learning async local 2 x 32 seed 0": "died:\n  SIGKILL"})


def line_of(report, section, name):
    body = report.split(f"## {section}\n")[1].split("\n## ")[0]
    return [
        cell.strip() for line in body.splitlines() if line.startswith(f"| {name}") for cell in line.split("|")[1:-1]
    ]


def test_the_report_tells_every_figure(tmp_path):
    report = to_markdown(results(), Plots({"A plot": tmp_path / "plots" / "fps.png"}), tmp_path)
    assert line_of(report, "Pure simulation", "2 x 32") == ["2 x 32", "525 [50, 1,000]"]
    row = line_of(report, "Throughput", ASYNC.name)
    assert row[1:] == ["415 [30, 800]", "70.0 % [60.0 %, 80.0 %]", "830 [60, 1,600]", "12.3", "1.50", "25.0 %"]
    assert line_of(report, "CPU and memory", ASYNC.name)[1:] == ["321", "512", "1,024", "3.2"]
    assert line_of(report, "Lag at first use", ASYNC.name)[1:] == ["7.5", "8.0", "432.1"]
    ages = (
        "5 optimizer steps on its dataset, each sample ages by another 2.0 versions on average (95th percentile 3.8, "
    )
    assert f"{ages}at most 4)" in " ".join(report.split())
    assert line_of(report, "What the roles do", "`perf/learner_busy`")[1:] == ["87.5 %"]
    assert line_of(report, "What the roles do", "`profile/rollout/step`")[1:] == ["62.5 %"]
    assert line_of(report, "Return at the end", SYNC.name)[1:] == ["30", "4", "120.0 [40.0, 120.0]", "111.0"]
    reached = line_of(report, "Time and steps to a return", SYNC.name)
    assert reached[1:4] == [
        "100", "20 [20, not reached] (1 of 3 seeds censored)", "2.0 [2.0, not reached] (1 of 3 seeds censored)"
    ]  # fmt: skip
    assert reached[5:] == ["900", *["not reached (3 of 3 seeds censored)"] * 2]
    assert "* learning async local 2 x 32 seed 0: died: SIGKILL" in report
    assert "![A plot](plots/fps.png)" in report
    assert "0123abc" in report
    assert "Abacus" in report


def test_a_speedup_is_taken_within_a_seed_over_variants_that_differ_in_workers_only(tmp_path):
    one, four, other = (Variant("hogwild", "local", layout) for layout in (Layout(1, 8), Layout(4, 8), Layout(2, 32)))
    figures = {}
    for seed, rate in ((0, 100.0), (1, 1000.0)):
        figures[Task("throughput", one.name, seed, (), ())] = throughput(rate)
        figures[Task("throughput", four.name, seed, (), ())] = throughput(rate * (3.0 + seed))
        figures[Task("throughput", other.name, seed, (), ())] = throughput(7.0)
    figures[Task("learning", four.name, 0, (), ())] = learned([], rates=(50.0, 5.0))
    found = summarize(ABOUT, [four, one, other], figures, {}).speedups
    assert [(speedup["variant"], speedup["kind"]) for speedup in found] == [(four, "throughput"), (one, "throughput")]
    assert sorted(found[0]["speedup"].values) == pytest.approx([3.0, 4.0])
    assert sorted(found[0]["efficiency"].values) == pytest.approx([0.75, 1.0])
    assert found[1]["speedup"].values == found[1]["efficiency"].values == (1.0, 1.0)

    figures[Task("learning", one.name, 0, (), ())] = learned([], rates=(25.0, 2.5))
    results = summarize(ABOUT, [four, one, other], figures, {})
    report = to_markdown(results, Plots({}), tmp_path)
    body = report.split("## Speed-up over workers")[1].split("\n## ")[0]
    assert "| hogwild local 4 x 8 | real | 50 | 5.0 | 2.00 | 50.0 % |" in body
    assert "| hogwild local 4 x 8 | learning rate 0 | 2,150 [300, 4,000] | 12.3 | 3.50 [3.00, 4.00] | 87.5 %" in body
    assert "2 x 32" not in body


def test_ranks_have_a_speedup_of_their_own_and_the_share_of_their_exchanges(tmp_path):
    one, two = (Variant("async", "local", LAYOUT, num_ranks) for num_ranks in (1, 2))
    figures = {Task("throughput", one.name, 0, (), ()): throughput(100.0)}
    figures[Task("throughput", two.name, 0, (), (), 2)] = throughput(
        150.0, profile__learner__exchange_with_ranks=0.05, profile__learner__wait_for_ranks=0.2, perf__learner_busy=0.5
    )
    for layout, rate in (("2 x 32", 200.0), ("4 x 32", 300.0)):
        figures[Task("simulation", layout, 0, (), ())] = {"env_steps_per_s": rate, "replayed": False}
    curve, other = [[10.0, 1.0, 50.0]], [[10.0, 1.0, 60.0]]
    for variant in (one, two):
        figures[Task("learning", variant.name, 0, (), (), variant.num_ranks)] = learned(
            curve, other_curves=[other] * (variant.num_ranks - 1)
        )
    results = summarize(ABOUT, [one, two], figures, {})
    assert [(found["unit"], found["variant"]) for found in results.speedups] == [("ranks", one), ("ranks", two)]
    assert results.variants[1]["throughput"]["share_of_simulation"].values == (0.5,)
    plots = draw_plots(results, tmp_path / "plots")
    report = to_markdown(results, plots, tmp_path)
    row = line_of(report, "Speed-up over ranks", two.name)
    assert row[1:] == ["learning rate 0", "150", "12.3", "1.50", "75.0 %"]
    assert line_of(report, "Exchanges between ranks", two.name)[1:] == ["5.0 %", "20.0 %", "50.0 %"]
    assert "## Speed-up over workers" not in report
    if plots.left_out is None:
        assert {"speedup_ranks.png", "return_over_rank_steps.png"} <= {path.name for path in plots.files.values()}
    assert results.to_json()["variants"][1]["learning"]["other_curves"] == {"0": [other]}


def test_async_is_compared_with_sync_of_the_same_seed(tmp_path):
    other = Variant("async", "central", LAYOUT)
    figures = {Task("learning", other.name, 0, (), ()): learned([[10.0, 1.0, 500.0]])}
    sync = [[[10.0, 2.0, 0.0], [20.0, 4.0, 100.0]], [[10.0, 2.0, 100.0]], [[10.0, 2.0, 0.0]], [[10.0, 2.0, 0.0]]]
    in_background = [[[30.0, 3.0, 100.0]], [[10.0, 1.0, 0.0]], [[5.0, 1.0, 100.0]], [[10.0, 1.0, 0.0]]]
    for variant, curves in ((SYNC, sync), (ASYNC, in_background)):
        for seed, curve in enumerate(curves):
            figures[Task("learning", variant.name, seed, (), ())] = learned(curve)
    results = summarize(ABOUT, [SYNC, ASYNC, other], figures, {})
    at_100, at_900 = results.mode_comparisons
    assert (at_100["variant"], at_100["threshold"], at_100["num_neither"]) == (ASYNC, 100.0, 1)
    # Seed 0 reached it in both modes, seed 1 only in sync, seed 2 only in async, seed 3 in neither.
    assert at_100["env_steps"].values == (1.5, float("inf"), 0.0)
    assert at_100["seconds"].values == (0.75, float("inf"), 0.0)
    assert (at_900["env_steps"], at_900["seconds"], at_900["num_neither"]) == (None, None, 4)
    row = line_of(to_markdown(results, Plots({}), tmp_path), "Async beside sync", ASYNC.name)
    assert row[1:4] == [
        "100",
        *(f"{median} [0.00, not reached] (1 of 3 seeds censored)" for median in ("1.50", "0.75")),
    ]


def test_without_thresholds_those_are_taken_that_every_run_reached():
    curves = [[[1.0, 1.0, 0.0], [2.0, 1.0, 110.0], [3.0, 1.0, 90.0]], [[1.0, 1.0, 10.0], [2.0, 1.0, 300.0]]]
    assert common_thresholds(curves) == pytest.approx((55.0, 99.0))
    assert common_thresholds([*curves, []]) == (), "a run that finished no episode"
    assert common_thresholds([[[1.0, 1.0, 5.0]], [[1.0, 1.0, 9.0]]]) == (), "runs that did not improve"
    figures = {Task("learning", SYNC.name, 0, (), ()): learned(curves[0])}
    results = summarize({**ABOUT, "thresholds": ()}, [SYNC, ASYNC], figures, {})
    assert results.about["thresholds"] == pytest.approx((55.0, 99.0))
    assert [reached["env_steps"].median for reached in results.variants[0]["learning"]["reached"]] == [2.0, 2.0]
    assert summarize(ABOUT, [SYNC], figures, {}).about["thresholds"] == ABOUT["thresholds"]


def test_the_data_is_json_without_infinities():
    data = json.loads(json.dumps(results().to_json(), allow_nan=False))
    sync, asynchronous = data["variants"]
    assert sync["variant"]["flags"] == list(SYNC.flags)
    assert sync["learning"]["reached"][0]["env_steps"] == {
        "median": 20.0, "ci95": [20.0, None], "values": [20.0, 20.0, None], "censored": 1
    }  # fmt: skip
    assert asynchronous["throughput"]["env_steps_per_s"]["values"] == [800.0, 30.0]
    assert asynchronous["learning"] is None
    assert data["simulation"]["2 x 32"]["median"] == 525.0


def test_every_plot_is_drawn(tmp_path):
    plots = draw_plots(results(), tmp_path / "plots")
    names = {path.name for path in plots.files.values()}
    assert names == {f"{name}.png" for name in ("fps", "lag", "utilisation", "return_over_steps", "return_over_time")}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.files.values())


def test_without_matplotlib_one_sentence_says_so(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name))
    plots = draw_plots(results(), tmp_path / "plots")
    report = to_markdown(results(), plots, tmp_path)
    assert plots.files == {}
    assert "pip install matplotlib" in report.split("## Plots")[1]


def test_nothing_measured_is_a_report_too(tmp_path):
    empty = summarize(ABOUT, [SYNC, ASYNC], {}, {"throughput sync": "not measured yet"})
    assert "not measured yet" in to_markdown(empty, draw_plots(empty, tmp_path), tmp_path)
