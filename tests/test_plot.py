import importlib.util
import json
import re

import matplotlib.image
import pytest
import yaml

from asyncrl.plot import main


def write_run(folder, name, records, **config):
    path = folder / name
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "config.yaml").write_text(yaml.safe_dump({"env": "Walker-v9", "algo": "ppo", **config}))
    return path


def steady(folder, name, num_workers, steps_per_s, total, first_return=0.0, startup_s=2.0):
    """Ten records; worker w's return is that of the run plus w, and rises by one with every record."""
    records = []
    for idx in range(1, 11):
        steps = idx * total // 10
        record = {"env_steps": steps, "time/time_elapsed": startup_s + steps / steps_per_s}
        for worker in range(num_workers):
            record[f"worker/{worker}/ep_rew_mean"] = first_return + idx + worker
            record[f"worker/{worker}/env_steps"] = steps // num_workers
        record["rollout/ep_rew_mean"] = first_return + idx + (num_workers - 1) / 2
        records.append(record)
    records.insert(5, {"env_steps": total // 2, "eval/mean_reward": 99.0})
    return write_run(folder, name, records, num_workers=num_workers)


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def numbers(capsys, *arguments):
    code, out, err = call(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out.splitlines()[-1])


def assert_is_drawn(path, num_colors):
    """The picture has what it should show: many pixels that are neither white nor grey, in so many lines' colours."""
    image = matplotlib.image.imread(path)
    pixels = (image[..., :3] * 255).round().astype(int).reshape(-1, 3)
    palette = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167))
    counts = [int((abs(pixels - color).max(axis=1) <= 2).sum()) for color in palette]
    assert sum(count > 150 for count in counts) == num_colors, counts


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
    assert_is_drawn(path / "plots" / "trial.png", num_colors=2)
    for axis in ("wall_time", "per_rank_steps"):
        code, _, err = call(capsys, "trial", path, f"--x={axis}")
        assert (code, f"--x={axis} is not possible for the trial of run" in err) == (2, True)


def test_each_run_gets_its_figure_and_one_without_worker_curves_says_so(tmp_path, capsys):
    path = steady(tmp_path, "run", 2, 100, 1000, first_return=4.0)
    old = write_run(tmp_path, "old", [{"env_steps": n, "rollout/ep_rew_mean": n} for n in (1, 2)])
    code, out, _ = call(capsys, "trial", path, old)
    assert code == 0
    assert out.splitlines() == [
        f"wrote {path}/plots/trial.png",
        "run: return 14.5 as the mean over workers, each over its last 100 episodes; the progress line shows 14.5, the "
        "mean over the last 100 episodes of all workers.",
        f"wrote {old}/plots/trial.png",
        "old has no curves of single workers: the figure shows the mean over all of them, without a band.",
    ]
    assert_is_drawn(old / "plots" / "trial.png", num_colors=2)


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
    # A single point is no line, but it is to be seen.
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
    assert_is_drawn(two / "plots" / "trial.png", num_colors=2)
    groups = numbers(capsys, "compare", one, two, "--x=per_rank_steps")["groups"]
    assert [group["x"][-1] for group in groups] == [1000.0, 500.0]
    groups = numbers(capsys, "compare", one, two, "--x=per_worker_steps")["groups"]
    assert [group["x"][-1] for group in groups] == [500.0, 250.0]
    result = numbers(capsys, "speedup", one, two)
    assert (result["unit"], result["counts"][1]["count"]) == ("rank", 2)
    assert result["counts"][1]["efficiency"]["median"] == pytest.approx(0.75)


def test_a_run_killed_in_the_middle_of_a_line_is_drawn_without_that_line(tmp_path, capsys):
    path = steady(tmp_path, "run", 1, 100, 1000)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 1100, "worker/0/ep_rew_m')
    (trial,) = numbers(capsys, "trial", path)["trials"]
    assert trial["env_steps"][-1] == 1000


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "No command was given: the first argument is one of trial, compare, speedup, elo, population"),
        (
            ("trail", "{run}"),
            "There is no command 'trail': the first argument is one of trial, compare, speedup, elo, population; "
            "the nearest is trial",
        ),
        (("trial",), "No run was given: trial needs at least one"),
        (("trial", "{run}", "--windw=3"), "the nearest is --window"),
        (("trial", "{run}", "--window=0"), "--window=0 is not possible: expected a whole number greater than 0."),
        (("trial", "{run}", "--json=maybe"), "--json=maybe is not possible: expected True or False."),
        (("trial", "{run}", "--window=11"), "--window=11 is more than the 10 records of run"),
        (("trial", "{run}", "--out=figure.gif"), "expected a file name that ends in .png, .pdf or .svg"),
        (("trial", "{run}", "{other}", "--out=figure.png"), "one file, but each of the 2 runs"),
        (("trial", "{run}", "{run}"), "given twice"),
        (("trial", "{folder}/missing"), "There is no run"),
        (("trial", "{folder}"), "has no metrics.jsonl"),
        (("trial", "{empty}"), "has no record yet"),
        (("trial", "{other}"), "other has recorded no return yet"),
        (("trial", "{run}", "--out={run}/config.yaml/figure.png"), "Cannot write"),
        (
            ("compare", "{run}"),
            "--x is required: choose the horizontal axis. Would pass: --x=per_worker_steps, --x=per_rank_steps",
        ),
        (("compare", "{run}", "--x=steps"), "--x=steps is not possible: expected per_worker_steps, per_rank_steps, "),
        (
            ("compare", "{run}", "--x=total_steps", "--group=("),
            "--group=( is not possible: expected a regular expression.",
        ),
        (("compare", "{other}", "--x=total_steps", "--metric=eval"), "other has recorded no evaluation"),
        (("speedup", "{run}"), "at least two numbers of workers or ranks, but all have 2 workers"),
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
    code, out, err = call(capsys, "compare", run, *others, "--x=total_steps")
    assert (code, err) == (0, "")
    left_out = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert [path for path, line in zip(others, left_out, strict=True) if str(path) not in line] == []
    assert (run / "plots" / "compare.png").exists()
    code, out, err = call(capsys, "compare", *others, "--x=total_steps")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 3 and all(line.startswith("error: ") for line in err.splitlines())


def test_without_matplotlib_one_sentence_says_what_to_install(tmp_path, capsys, monkeypatch):
    path = steady(tmp_path, "run", 1, 100, 1000)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name))
    code, out, err = call(capsys, "trial", path)
    assert (code, out) == (2, "")
    assert err == "error: Figures need matplotlib, which is not installed: pip install matplotlib\n"


def test_help_names_every_command_and_flag(capsys):
    code, out, _ = call(capsys, "trial", "--help")
    assert code == 0
    for text in (
        "trial:",
        "compare:",
        "speedup:",
        "population:",
        "--window",
        "--x",
        "--metric",
        "--group",
        "--out",
        "--json",
    ):
        assert text in out


def test_help_shows_an_example_of_each_command_and_what_is_required(capsys):
    out = call(capsys, "--help")[1]
    for command in ("trial", "compare", "speedup", "population"):
        assert f"\n  python -m asyncrl.plot {command} train_dir/" in out
    of_trial, of_compare = re.findall(r"--x=VALUE (.*?) --", " ".join(out.split()))
    assert of_trial == of_compare
    assert of_compare.startswith("horizontal axis: ") and "compare has no default" in of_compare


@pytest.mark.parametrize(("suffix", "beginning"), [("pdf", b"%PDF-"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_the_name_of_the_file_chooses_the_format(tmp_path, capsys, suffix, beginning):
    path = steady(tmp_path, "run", 2, 100, 1000)
    out = tmp_path / f"figure.{suffix}"
    assert call(capsys, "compare", path, "--x=total_steps", f"--out={out}")[0] == 0
    assert out.read_bytes().startswith(beginning)


def test_a_comparison_has_the_environment_and_the_number_of_runs_as_its_title(tmp_path, capsys):
    runs = [steady(tmp_path, f"a_seed{seed}", 2, 100, 1000) for seed in (0, 1)]
    out = tmp_path / "figure.svg"
    result = numbers(capsys, "compare", *runs, "--x=total_steps", f"--out={out}")
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


def test_ratings_of_policy_and_pool_are_drawn(tmp_path, capsys):
    records = [
        {"env_steps": n, "self_play/elo": 1200.0 + n, "self_play/pool_size": 0.0, "rollout/ep_rew_mean": 0.0}
        for n in (100, 200, 300, 400)
    ]
    for record in records[1:]:
        of_pool = {"mean": 1190.0, "min": 1180.0, "max": 1210.0}
        record |= {f"self_play/pool_elo_{name}": value + record["env_steps"] / 2 for name, value in of_pool.items()}
        record["self_play/win_rate"] = 0.75
    path = write_run(tmp_path, "game", records)
    (run,) = numbers(capsys, "elo", path)["runs"]
    assert run["policy"] == {"env_steps": [100.0, 200.0, 300.0, 400.0], "values": [1300.0, 1400.0, 1500.0, 1600.0]}
    assert run["pool_mean"]["values"] == [1290.0, 1340.0, 1390.0]
    assert run["win_rate"] == {"env_steps": [200.0, 300.0, 400.0], "values": [0.75] * 3}
    assert run["file"] == str(path / "plots" / "elo.png")
    assert_is_drawn(path / "plots" / "elo.png", num_colors=2)
    other = steady(tmp_path, "no_pool", 1, 100, 1000)
    code, _, err = call(capsys, "elo", other)
    assert code == 2 and "no_pool has recorded no games against a pool: train with --self_play=True" in err


def write_population(folder, **config):
    """Policy 1 is replaced after 200 of its steps; the records have twice as many steps of the run."""
    records = [
        {"env_steps": 2 * n, **{f"policy_{idx}/time/total_env_steps": n for idx in (0, 1)},
         "policy_0/rollout/ep_rew_mean": n / 10, "policy_1/rollout/ep_rew_mean": 1.0}
        for n in (100, 200, 300)
    ]  # fmt: skip
    path = write_run(folder, "run", records, **config)

    def turn(policy, steps, rate, source=None):
        after = {"learning_rate": rate, "max_grad_norm": 0.5}
        return {"policy": policy, "policy_env_steps": steps, "source": source, "after": after}

    turns = [turn(0, 0, 0.1), turn(1, 0, 0.001), turn(0, 210, 0.1), turn(1, 200, 0.15, "policy_0")]
    (path / "pbt.jsonl").write_text("".join(json.dumps(each) + "\n" for each in turns) + '{"broken')
    return path


def test_a_population_is_drawn_with_its_objectives_hyperparameters_and_takeovers(tmp_path, capsys):
    path = write_population(tmp_path)
    result = numbers(capsys, "population", path)
    first, second = result["members"]
    assert (first["name"], first["env_steps"], first["objective"]) == ("policy_0", [100, 200, 300], [10, 20, 30])
    assert second["takeovers"] == [{"env_steps": 200, "source": "policy_0"}]
    assert second["hyperparameters"]["learning_rate"] == {"env_steps": [0, 200, 300], "values": [0.001, 0.15, 0.15]}
    assert result["file"] == str(path / "plots" / "population.png")
    assert_is_drawn(path / "plots" / "population.png", num_colors=2)


def test_a_run_without_a_population_is_refused(tmp_path, capsys):
    code, _, err = call(capsys, "population", steady(tmp_path, "run", 1, 100, 1000))
    assert code == 2 and "run has no pbt.jsonl: it was not trained with --with_pbt=True" in err
