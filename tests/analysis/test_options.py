import importlib.util
from pathlib import Path

import pytest

from asyncrl import benchmark
from asyncrl.analysis.benchmark import session
from asyncrl.analysis.benchmark.options import INSTEAD
from asyncrl.analysis.benchmark.report import Plots
from asyncrl.analysis.benchmark.results import learning_figures
from asyncrl.analysis.benchmark.tasks import Workshop
from asyncrl.analysis.benchmark.variants import Layout, Variant
from asyncrl.commands.benchmark import Benchmark
from asyncrl.config import presets
from asyncrl.config.errors import UsageError

pytestmark = pytest.mark.usefixtures("probes_here")

read_options = Benchmark().read
BASE = ["--env=CartPole-v1", "--output=out"]


def test_flags_of_training_are_passed_on_and_lists_are_not():
    options = read_options(
        [*BASE, "--modes=async", "--num_workers", "1,2", "--num_envs_per_worker=8,auto", "--seeds=2", "--seed=7",
         "--gamma", "0.9", "--encoder_mlp_layers", "8", "8", "--preset=none", "--json=figures.json"]
    )  # fmt: skip
    assert options.num_workers == ("1", "2")
    assert options.num_envs_per_worker == ("8", "auto")
    assert options.compared_modes == ("async",)
    assert options.json_path == Path("figures.json")
    assert list(options.seeds_of_rounds) == [7, 8]
    assert not options.learns
    assert set(options.train_flags) == {
        "--env=CartPole-v1", "--gamma=0.9", "--encoder_mlp_layers=8, 8", "--preset=none"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            [*BASE, "--modes=sync,asynk"],
            "--modes=sync,asynk is not possible: expected sync, async, sampling or hogwild, one",
        ),
        ([*BASE, "--num_ranks=1,0"], "--num_ranks=1,0 is not possible: expected whole numbers greater than 0"),
        ([*BASE, "--seeds=0"], "--seeds=0"),
        ([*BASE, "--seed=x"], "--seed=x"),
        ([*BASE, "--measure_s=-1"], "--measure_s=-1"),
        ([*BASE, "--thresholds=x,y"], "--thresholds=x,y is not possible: expected numbers"),
        ([*BASE, "--inference_modes=gpu"], "expected auto, local or central"),
        ([*BASE, "--thresholds=10"], "--train_for_env_steps"),
        ([*BASE, "--measure_s=0"], "nothing to measure"),
        ([*BASE, "--inference_mode=local"], "--inference_modes"),
        ([*BASE, "--backend=hogwild", "--modes=async"], "--modes=hogwild"),
        ([*BASE, "--treshold=10"], "thresholds"),
    ],
)
def test_a_mistake_is_one_sentence(flags, said):
    with pytest.raises(UsageError) as caught:
        read_options(flags)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1, caught.value


def test_the_hogwild_backend_is_a_mode():
    for flag in ("--backend=hogwild", "--algo=a3c", "--modes=hogwild"):
        options = read_options([*BASE, flag, "--num_workers=1,2,4"])
        assert options.compared_modes == ("hogwild",)
        assert not any(passed.startswith("--backend") for passed in options.train_flags)
    assert Variant("hogwild", "local", Layout(2, 4)).flags[0] == "--backend=hogwild"
    assert read_options([*BASE, "--backend=actor_learner"]).compared_modes == ("sync", "async")


def test_a_trained_run_brings_its_settings(tmp_path):
    own = (f"--config={tmp_path}/config.yaml", "--preset=none")
    for settings, unit in (
        ("env: CartPole-v1\naction_unit: bounds\n", ()),
        ("env: CartPole-v1\n", ("--action_unit=raw",)),
    ):
        (tmp_path / "config.yaml").write_text(settings)
        options = read_options(["--output=out", f"--from_run={tmp_path}"])
        assert options.train_flags == (*own, *unit)
    with pytest.raises(UsageError, match="throughput only"):
        read_options(["--output=out", f"--from_run={tmp_path}", "--train_for_env_steps=100"])


def test_a_serial_run_is_not_compared(tmp_path):
    (tmp_path / "serial.yaml").write_text("env: CartPole-v1\nserial_mode: true\nasync_rl: false\n")
    options = read_options(["--output=out", f"--config={tmp_path}/serial.yaml", "--modes=sync"])
    with pytest.raises(UsageError, match="a serial run has no roles to compare"):
        session.prepare(options)


def test_without_an_output_each_environment_has_a_folder(monkeypatch, capsys):
    monkeypatch.setattr(session, "run", lambda benchmark, say: True)
    assert benchmark.main(["--env=CartPole-v1", "--modes=async", "--seeds=1", "--num_workers=1,2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("4 measurements of CartPole-v1 in bench/CartPole-v1: async local ")
    assert session.prepare(read_options(["--env=ALE/Pong-v5", "--modes=async"])).output == Path("bench/ALE-Pong-v5")
    assert session.prepare(read_options([*BASE, "--modes=async"])).output == Path("out")


def test_help_shows_what_is_required_and_no_setting_that_is_refused(capsys):
    assert benchmark.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: asyncrl benchmark --env=")
    assert "--env is required" in " ".join(text.split())
    assert "default bench/ENV" in " ".join(text.split())
    flags = [line.split()[0].split("=")[0] for line in text.splitlines() if line.startswith("  --")]
    assert len(flags) == len(set(flags)), "each flag is there once"
    assert not {f"--{name}" for name in INSTEAD} & set(flags)


def test_a_stopped_benchmark_says_how_to_continue(monkeypatch, capsys):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run", stop)
    assert benchmark.main([*BASE, "--modes=async", "--seeds=1"]) == 130
    assert "The same command continues" in capsys.readouterr().err


def test_a_missing_package_is_one_sentence(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pandas" else find(name))
    assert benchmark.main([*BASE, "--modes=async"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "need the package pandas" in line and '".[benchmark]"' in line


def test_measurements_with_the_settings_of_a_file_are_made_again_when_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "settings.yaml"
    flags = [f"--config={path}", f"--output={tmp_path}/out", "--modes=sync,async", "--seeds=1", "--num_workers=1"]
    flags += ["--measure_s=0", "--train_for_env_steps=1000", "--learning_rate=0.01"]
    measured = []

    def carry_out(workshop, task):
        measured.append(task.name.split()[0])
        if measured == ["sync", "async", "sync"]:
            path.write_text("env: CartPole-v1\ngamma: 0.8\n")
        return learning_figures([[]], {"env_steps": 1000, "wall_s": 1.0, "ep_rew_mean": 2.0}, None)

    def measure():
        return session.run(session.prepare(read_options(flags)), lambda text: None)

    monkeypatch.setattr(Workshop, "carry_out", carry_out)
    monkeypatch.setattr(session, "draw_plots", lambda results, folder: Plots({}))
    path.write_text("env: CartPole-v1\ngamma: 0.7\nlearning_rate: 0.1\n")
    assert measure()
    path.write_text(
        "# a comment, and a value that a flag overrides\nenv: CartPole-v1\ngamma: 0.7\nlearning_rate: 0.2\n"
    )
    assert measure()
    assert measured == ["sync", "async"]
    path.write_text("env: CartPole-v1\ngamma: 0.9\n")
    with pytest.raises(UsageError, match="were changed during the benchmark"):
        measure()
    assert measured == ["sync", "async", "sync"]
    assert measure()
    assert measured == ["sync", "async", "sync", "sync", "async"]


def test_what_the_files_of_presets_and_runs_say_is_a_condition(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    for gamma in (0.7, 0.8):
        (tmp_path / "mine.yaml").write_text(f"envs: [CartPole-*]\nsettings: {{gamma: {gamma}, gae_lambda: 0.5}}\n")
        (run / "config.yaml").write_text(f"env: CartPole-v1\ngamma: {gamma}\n")
        for flags, found in (
            (["--env=CartPole-v1", "--gae_lambda=0.6"], (f"gamma={gamma}",)),
            (["--env=Acrobot-v1"], ()),
            ([f"--from_run={run}"], ("env='CartPole-v1'", f"gamma={gamma}")),
        ):
            assert session.settings_of_files(read_options(flags)) == found
