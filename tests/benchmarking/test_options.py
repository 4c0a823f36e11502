from pathlib import Path

import pytest

from asyncrl.benchmarking.options import read_options
from asyncrl.benchmarking.variants import Layout, Variant
from asyncrl.config.errors import UsageError

BASE = ["--env=CartPole-v1", "--output=out"]


def test_flags_of_training_are_passed_on_and_lists_are_not():
    options = read_options(
        [*BASE, "--modes=async", "--num_workers", "1,2", "--num_envs_per_worker=8,auto", "--seeds=2", "--seed=7",
         "--gamma", "0.9", "--encoder_mlp_layers", "8", "8", "--preset=none", "--json=figures.json"]
    )  # fmt: skip
    assert options.own.num_workers == ("1", "2")
    assert options.own.num_envs_per_worker == ("8", "auto")
    assert options.own.modes == ("async",)
    assert options.own.json_path == Path("figures.json")
    assert options.seeds == (7, 8)
    assert not options.learns
    assert set(options.train_flags) == {
        "--env=CartPole-v1", "--gamma=0.9", "--encoder_mlp_layers=8, 8", "--preset=none"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env=CartPole-v1"], "--output"),
        (["--output=out"], "--env=ID is required"),
        ([*BASE, "--modes=sync,asynk"], "--modes=sync,asynk"),
        ([*BASE, "--num_workers=1,0"], "--num_workers=1,0"),
        ([*BASE, "--num_ranks=1,0"], "--num_ranks=1,0"),
        ([*BASE, "--seeds=0"], "--seeds=0"),
        ([*BASE, "--seed=x"], "--seed=x"),
        ([*BASE, "--measure_s=-1"], "--measure_s=-1"),
        ([*BASE, "--thresholds=10"], "--train_for_env_steps"),
        ([*BASE, "--measure_s=0"], "nothing to measure"),
        ([*BASE, "--async_rl=True"], "--modes=sync,async"),
        ([*BASE, "--inference_mode=local"], "--inference_modes"),
        ([*BASE, "--backend=hogwild", "--modes=async"], "--modes=hogwild"),
        ([*BASE, "--treshold=10"], "thresholds"),
        (["--output=out", "--from_run=nowhere"], "no config.yaml"),
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
        assert options.own.modes == ("hogwild",)
        assert not any(passed.startswith("--backend") for passed in options.train_flags)
    assert Variant("hogwild", "local", Layout(2, 4)).flags[0] == "--backend=hogwild"
    assert read_options([*BASE, "--backend=actor_learner"]).own.modes == ("sync", "async")


def test_a_trained_run_brings_its_settings(tmp_path):
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\n")
    options = read_options(["--output=out", f"--from_run={tmp_path}"])
    assert options.train_flags == (f"--config={tmp_path}/config.yaml", "--preset=none")
    with pytest.raises(UsageError, match="throughput only"):
        read_options(["--output=out", f"--from_run={tmp_path}", "--train_for_env_steps=100"])
