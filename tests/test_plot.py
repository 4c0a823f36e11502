import importlib.util
import json
import re

import pytest
import yaml
from plotted_runs import assert_is_drawn, call, numbers, steady, write_run

from asyncrl.analysis import drawing
from asyncrl.analysis.figures import make_trial
from asyncrl.analysis.records import read_runs


def test_a_trial_has_mean_and_deviation_over_workers_and_their_moving_average(tmp_path, capsys):
    path = steady(tmp_path, "run", 3, 100, 1000)
    (trial,) = numbers(capsys, "trial", path, "--window", "2")["trials"]
    assert (trial["run"], trial["workers"], trial["window"]) == ("run", [0, 1, 2], 2)
    assert trial["env_steps"] == [100.0 * idx for idx in range(1, 11)]
    assert trial["mean"] == pytest.approx([idx + 1 for idx in range(1, 11)])
    assert trial["std"] == pytest.approx([(2 / 3) ** 0.5] * 10)
    assert trial["moving_average"] == pytest.approx([2] + [idx + 0.5 for idx in range(2, 11)])
    assert trial["file"] == str(path / "plots" / "trial.png")
    assert_is_drawn(path / "plots" / "trial.png", num_colors=2)


def test_a_trial_is_drawn_over_the_steps_that_each_worker_has_made(tmp_path, capsys):
    records = [
        {"env_steps": 40 * n, "worker/0/env_steps": 10 * n, "worker/0/ep_rew_mean": n,
         "worker/1/env_steps": 30 * n, "worker/1/ep_rew_mean": 3 * n}
        for n in range(1, 11)
    ]  # fmt: skip
    path = write_run(tmp_path, "run", records, num_workers=2)
    (trial,) = numbers(capsys, "trial", path, "--x=per_worker_steps", "--window=1")["trials"]
    assert (trial["x"], trial["env_steps"][0], trial["env_steps"][-1]) == ("per_worker_steps", 30.0, 100.0)
    assert trial["mean"] == pytest.approx([step / 10 for step in trial["env_steps"]])  # both are at their steps / 10
    assert trial["std"] == pytest.approx([0.0] * len(trial["env_steps"]))
    assert_is_drawn(path / "plots" / "trial.png", num_colors=1)
    for axis in ("wall_time", "per_rank_steps"):
        code, _, err = call(capsys, "trial", path, f"--x={axis}")
        assert (code, f"--x={axis} is not possible for the trial of run" in err) == (2, True)


def test_each_run_gets_its_figure(tmp_path, capsys):
    path = steady(tmp_path, "run", 2, 100, 1000, first_return=4.0)
    old = write_run(tmp_path, "old", [{"env_steps": n, "rollout/ep_rew_mean": n} for n in (1, 2)])
    code, out, _ = call(capsys, "trial", path, old)
    assert code == 0
    assert out.splitlines() == [
        f"wrote {path}/plots/trial.png",
        "run: return 14.5 as the mean over workers, each over its last 100 episodes; the progress line shows 14.5, the "
        "mean over the last 100 episodes of all workers.",
        f"wrote {old}/plots/trial.png",
    ]
    assert_is_drawn(old / "plots" / "trial.png", num_colors=1)


def test_one_panel_shows_only_what_is_drawn_where_there_is_no_band(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(drawing, "save", lambda figure, path: figures.append(figure))
    records = [{"env_steps": n, "rollout/ep_rew_mean": n} for n in range(1, 31)]
    one = read_runs([steady(tmp_path, "one", 1, 100, 1000)], print)[0]
    long = read_runs([write_run(tmp_path, "long", records)], print)[0]
    two = read_runs([steady(tmp_path, "two", 2, 100, 1000)], print)[0]
    for run, window in ((one, None), (long, 30), (two, None), (two, 4)):
        drawing.draw_trial(make_trial(run, window), tmp_path / "trial.png")
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for each in figures for axes in each.axes]
    assert labels == [
        ["mean of 1 worker"],
        ["mean over the last 100 episodes of all workers", "moving average of 30 records"],
        ["mean of 2 workers", "one standard deviation over workers"],
        ["mean of 2 workers", "one standard deviation over workers"],
        ["mean of 2 workers", "moving average of 4 records"],
    ]
    assert figures[1].axes[0].lines[1].get_marker() == "o", "an average of all records is one point"


def test_a_run_alone_is_a_trial_and_steps_are_the_axis_of_a_comparison(tmp_path, capsys):
    path = steady(tmp_path, "run", 2, 100, 1000)
    assert numbers(capsys, path) == numbers(capsys, "trial", path)
    compared = numbers(capsys, "compare", path)
    assert compared["x"] == "env_steps"
    for axis in ("env_steps", "total_steps"):
        assert numbers(capsys, "compare", path, f"--x={axis}") == compared


def test_a_comparison_of_two_environments_is_warned_of(tmp_path, capsys):
    runs = [write_run(tmp_path, env, [{"env_steps": 1, "rollout/ep_rew_mean": 1}], env=env) for env in ("A-v0", "B-v0")]
    out = call(capsys, "compare", *runs)[1]
    assert out.splitlines()[0] == (
        "warning: The runs are in different environments, so their returns differ in scale: A-v0, B-v0."
    )
    assert "warning" not in call(capsys, "compare", runs[0])[1]


def test_a_figure_that_takes_the_place_of_another_says_so(tmp_path, capsys):
    path = steady(tmp_path, "run", 1, 100, 1000)
    out = tmp_path / "new" / "figure.png"
    assert call(capsys, "trial", path, f"--out={out}")[1] == f"wrote {out}\n"
    assert call(capsys, "trial", path, f"--out={out}")[1] == f"wrote {out} (replaced)\n"


def test_seeds_are_compared_as_one_group(tmp_path, capsys):
    runs = [steady(tmp_path, f"a_seed{seed}", 2, 100, 1000, first_return=4.0 * seed) for seed in (0, 1)]
    runs.append(steady(tmp_path, "b", 4, 200, 2000))
    result = numbers(capsys, "compare", *runs, "--x=per_worker_steps")
    a, b = result["groups"]
    assert (a["name"], a["runs"], b["name"], b["runs"]) == ("a", ["a_seed0", "a_seed1"], "b", ["b"])
    assert a["x"] == [50.0 * idx for idx in range(1, 11)]
    assert b["x"] == [50.0 * idx for idx in range(1, 11)]
    assert a["mean"] == pytest.approx([idx + 2.5 for idx in range(1, 11)])
    assert a["std"] == pytest.approx([8**0.5] * 10)
    assert b["std"] is None
    assert result["file"] == str(runs[0] / "plots" / "compare.png")
    assert_is_drawn(result["file"], num_colors=2)


def test_runs_are_compared_over_time_by_their_evaluations_and_by_a_pattern(tmp_path, capsys):
    runs = [steady(tmp_path, f"{kind}{n}", 1, 100, 1000) for kind in ("fast", "slow") for n in (1, 2)]
    command = ("compare", *runs, "--x=wall_time", "--group=fast|slow")
    groups = numbers(capsys, *command)["groups"]
    assert [group["name"] for group in groups] == ["fast", "slow"]
    assert groups[0]["x"] == pytest.approx([2.0 + idx for idx in range(1, 11)])
    evaluated = numbers(capsys, *command, "--metric=eval", f"--out={tmp_path / 'eval.png'}")["groups"]
    assert (evaluated[0]["x"], evaluated[0]["mean"]) == (pytest.approx([7.0]), [99.0])
    # A single point is not a line, but it is to be seen.
    assert (tmp_path / "eval.png").stat().st_size > 5000


def test_speed_up_and_efficiency_are_told_drawn_and_corrected_for_totals(tmp_path, capsys):
    runs = [steady(tmp_path, "w1", 1, 100, 1000), steady(tmp_path, "w4", 4, 300, 5000, startup_s=30.0)]
    result = numbers(capsys, "speedup", *runs)
    assert (result["common_env_steps"], result["base_count"]) == (1000, 1)
    four = result["runs"][1]
    assert (four["total_env_steps"], four["env_steps_per_s"]) == (5000, pytest.approx(300))
    assert (four["speedup"], four["efficiency"]) == (pytest.approx(3.0), pytest.approx(0.75))
    assert result["counts"][1]["efficiency"]["median"] == pytest.approx(0.75)
    assert_is_drawn(runs[0] / "plots" / "speedup.png", num_colors=1)
    code, out, _ = call(capsys, "speedup", *runs)
    assert code == 0
    assert out.splitlines()[-2].split() == ["4", "1", "4.00", "3.00", "75.0%"]


def of_ranks(folder, name, num_ranks, steps_per_s, total):
    """Ten records of each rank; the return of rank r is that of the first plus 10 r. All count the steps of all."""
    path = steady(folder, name, 0, steps_per_s, total)
    (path / "environment.json").write_text(json.dumps({"num_ranks": num_ranks}))
    (path / "config.yaml").write_text(yaml.safe_dump({"env": "Walker-v9", "algo": "ppo", "num_workers": 2}))
    for rank in range(1, num_ranks):
        records = [
            {"env_steps": idx * total // 10, "rollout/ep_rew_mean": idx - 0.5 + 10 * rank} for idx in range(1, 11)
        ]
        write_run(path / "ranks", str(rank), records)
    return path


def test_ranks_are_drawn_and_compared_like_workers(tmp_path, capsys):
    one, two = of_ranks(tmp_path, "one", 1, 100, 1000), of_ranks(tmp_path, "two", 2, 150, 1000)
    write_run(two / "ranks", "2", [{"env_steps": 1, "rollout/ep_rew_mean": 1e6}])  # of an earlier time with three
    (trial,) = numbers(capsys, "trial", two)["trials"]
    assert (trial["ranks"], trial["env_steps"][-1]) == ([0, 1], 1000)
    assert trial["mean"] == pytest.approx([idx + 4.5 for idx in range(1, 11)])
    assert trial["std"] == pytest.approx([5.0] * 10)
    (of_each,) = numbers(capsys, "trial", two, "--x=per_rank_steps")["trials"]
    assert (of_each["env_steps"][-1], of_each["mean"]) == (500.0, trial["mean"])
    assert_is_drawn(two / "plots" / "trial.png", num_colors=1)
    groups = numbers(capsys, "compare", one, two, "--x=per_rank_steps")["groups"]
    assert [group["x"][-1] for group in groups] == [1000.0, 500.0]
    groups = numbers(capsys, "compare", one, two, "--x=per_worker_steps")["groups"]
    assert [group["x"][-1] for group in groups] == [500.0, 250.0]
    result = numbers(capsys, "speedup", one, two)
    assert (result["unit"], result["counts"][1]["count"]) == ("rank", 2)
    assert result["counts"][1]["efficiency"]["median"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("trail", "{run}"), "; the nearest is trial."),
        (("trial", "{run}", "--windw=3"), "the nearest is --window"),
        (("trial", "{run}", "--window=0"), "--window=0 is not possible: expected a whole number greater than 0."),
        (("trial", "{run}", "--json=maybe"), "--json=maybe is not possible: expected True or False."),
        (("trial", "{run}", "--out=figure.gif"), "expected a file name that ends in .png, .pdf or .svg"),
        (("trial", "{run}", "{other}", "--out=figure.png"), "one file, but each of the 2 runs"),
        (("trial", "{folder}"), "has no metrics.jsonl"),
        (("trial", "{empty}"), "has no record yet"),
        (("trial", "{other}"), "other has recorded no return yet"),
        (("trial", "{run}", "--out={run}/config.yaml/figure.png"), "Cannot write"),
        (
            ("compare", "{run}", "--x=env_steps", "--group=("),
            "--group=( is not possible: expected a regular expression.",
        ),
        (("speedup", "{run}", "--window=3"), "There is no flag --window"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, capsys, arguments, problem):
    run = steady(tmp_path, "run", 2, 100, 1000)
    other = write_run(tmp_path, "other", [{"env_steps": 0, "worker/0/env_steps": 0}])
    names = {"run": run, "other": other, "empty": write_run(tmp_path, "empty", []), "folder": tmp_path}
    code, out, err = call(capsys, *(argument.format(**names) for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert problem in err
    assert len(err.splitlines()) == 1


def test_runs_without_records_are_left_out_with_a_line_each_unless_no_other_is_given(tmp_path, capsys):
    run, empty = steady(tmp_path, "run", 1, 100, 1000), write_run(tmp_path, "empty", [])
    (tmp_path / "notes.txt").write_text("")
    others = [empty, tmp_path, tmp_path / "notes.txt"]
    code, out, err = call(capsys, "compare", run, *others, "--x=env_steps")
    assert (code, err) == (0, "")
    left_out = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert [path for path, line in zip(others, left_out, strict=True) if str(path) not in line] == []
    assert (run / "plots" / "compare.png").exists()
    code, out, err = call(capsys, "compare", *others, "--x=env_steps")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 3 and all(line.startswith("error: ") for line in err.splitlines())


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, capsys, monkeypatch):
    path = steady(tmp_path, "run", 1, 100, 1000)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name))
    code, out, err = call(capsys, "trial", path)
    assert (code, out) == (2, "")
    assert err == "error: Figures need matplotlib, which is not installed: pip install matplotlib\n"


def test_help_shows_an_example_of_each_command_and_what_is_required(capsys):
    out = call(capsys, "--help")[1]
    for command in ("trial", "compare", "speedup"):
        assert f"\n  asyncrl plot {command} train_dir/" in out
    of_trial, of_compare = re.findall(r"--x=VALUE (.*?) --", " ".join(out.split()))
    assert of_trial == of_compare
    assert of_compare.startswith("horizontal axis: ") and of_compare.endswith("[default env_steps]")


@pytest.mark.parametrize(("suffix", "beginning"), [("pdf", b"%PDF-"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_the_name_of_the_file_chooses_the_format(tmp_path, capsys, suffix, beginning):
    path = steady(tmp_path, "run", 2, 100, 1000)
    out = tmp_path / f"figure.{suffix}"
    assert call(capsys, "compare", path, "--x=env_steps", f"--out={out}")[0] == 0
    assert out.read_bytes().startswith(beginning)


def test_a_comparison_has_the_environment_and_the_number_of_runs_as_its_title(tmp_path, capsys):
    runs = [steady(tmp_path, f"a_seed{seed}", 2, 100, 1000) for seed in (0, 1)]
    out = tmp_path / "figure.svg"
    result = numbers(capsys, "compare", *runs, "--x=env_steps", f"--out={out}")
    assert result["env"] == "Walker-v9"
    assert "<!-- Walker-v9: 2 runs -->" in out.read_text()


def test_the_moving_average_is_drawn_where_its_window_is_full(tmp_path, capsys, monkeypatch):
    drawn = {}
    axes = pytest.importorskip("matplotlib.axes").Axes
    plot = axes.plot

    def recording_plot(self, x, y, **style):
        drawn[style["label"]] = (list(x), list(y))
        return plot(self, x, y, **style)

    monkeypatch.setattr(axes, "plot", recording_plot)
    path = steady(tmp_path, "run", 1, 100, 1000)
    assert call(capsys, "trial", path, "--window=4")[0] == 0
    steps, average = drawn["moving average of 4 records"]
    assert steps == [100.0 * idx for idx in range(4, 11)]
    assert average == pytest.approx([idx - 1.5 for idx in range(4, 11)])
