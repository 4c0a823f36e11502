"""The figure of a population, by `asyncrl plot` and in the report."""

import json

import pytest
from plotted_runs import assert_is_drawn, call, numbers, steady, write_run

from asyncrl.analysis.records import read_runs
from asyncrl.contrib.population.history import PLOT


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


def test_help_shows_the_command_with_an_example(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0 and "\npopulation:\n" in out
    assert "\n  asyncrl plot population train_dir/my_run" in out


def test_the_report_has_a_chart_of_each_population(tmp_path, capsys):
    path = write_population(tmp_path, num_policies=2)
    other = steady(tmp_path, "other", 1, 100, 1000)
    ((caption, figure),) = PLOT.figures(read_runs([other, path], print))
    assert caption == "Population: run"
    figure.draw(tmp_path / "chart.png")
    assert_is_drawn(tmp_path / "chart.png", num_colors=2)
    report = pytest.importorskip("asyncrl.contrib.report.command")
    assert report.main([str(other), str(path), f"--out={tmp_path / 'page.html'}"]) == 0
    assert "Population: run</figcaption>" in (tmp_path / "page.html").read_text()


def test_runs_of_a_shared_folder_are_one_figure(tmp_path, capsys):
    runs = [write_population(tmp_path / name, pbt_shared_dir="shared") for name in ("first", "second")]
    other = write_population(tmp_path / "other")
    captions = [caption for caption, _ in PLOT.figures(read_runs([runs[0], other, runs[1]], print))]
    assert captions == ["Population: first/run, second/run", "Population: other/run"]
    result = numbers(capsys, "population", *runs, f"--out={tmp_path / 'both.png'}")
    assert len(result["members"]) == 4 and result["file"] == str(tmp_path / "both.png")
