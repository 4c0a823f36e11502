"""`asyncrl benchmark` from flags to a report, on the smallest task."""

import json
import os
import signal
import time

import pytest
from matplotlib.figure import Figure
from quick_start import QuickProcess

from asyncrl import benchmark, plot, train
from asyncrl.config.schema import TrainConfig
from asyncrl.storage import checkpoint

TINY = (
    "--env=CartPole-v1",
    "--seeds=1",
    "--num_workers=1",
    "--num_envs_per_worker=8",
    "--rollout=8",
    "--batch_size=32",
    "--num_batches_per_epoch=2",
    "--num_epochs=1",
    "--learner_threads=1",
    "--encoder_mlp_layers=[8]",
    "--simulate_s=0.1",
)


@pytest.fixture
def fonts_are_open(tmp_path_factory):
    """Matplotlib keeps the files of its fonts open once it has written a letter."""
    figure = Figure()
    figure.suptitle("a")
    figure.savefig(tmp_path_factory.mktemp("fonts") / "a.png")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_a_benchmark_measures_reports_and_goes_on(tmp_path, capfd):
    flags = [*TINY, "--modes=async", "--warm_up_s=0.5", "--measure_s=10", "--train_for_env_steps=2000", "--episodes=2",
             "--thresholds=1,1000000", f"--output={tmp_path}/out", f"--json={tmp_path}/figures.json"]  # fmt: skip
    assert benchmark.main(flags) == 0, capfd.readouterr()
    data = json.loads((tmp_path / "figures.json").read_text())
    (variant,) = data["variants"]
    throughput, learning = variant["throughput"], variant["learning"]
    assert throughput["env_steps_per_s"]["median"] > 0
    assert throughput["share_of_simulation"]["median"] == pytest.approx(
        throughput["env_steps_per_s"]["median"] / data["simulation"]["1 x 8"]["median"]
    )
    assert throughput["samples_per_env_step"]["median"] == 1.0
    assert throughput["cpu_s_per_million_steps"]["median"] > 0
    assert throughput["peak_rss_bytes"]["median"] > 100e6
    assert "perf/rollout_busy" in throughput["shares"]
    assert learning["env_steps"]["median"] >= 2000
    assert learning["evaluated_return"]["median"] > 1
    assert [item["env_steps"]["censored"] for item in learning["reached"]] == [0, 1]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "async local 1 x 8" in report
    assert data["missing"] == {}

    results = (tmp_path / "out" / "results.jsonl").read_text()
    assert benchmark.main(flags) == 0
    assert "3 of 3 measurements were made before and are kept" in capfd.readouterr().out
    assert (tmp_path / "out" / "results.jsonl").read_text() == results


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_learning_from_a_replay_is_compared_at_the_same_ratio(tmp_path, capfd):
    flags = ["--env=Pendulum-v1", "--algo=sac", "--seeds=1", "--modes=sync,async", "--num_workers=1",
             "--num_envs_per_worker=2", "--learner_threads=1", "--encoder_mlp_layers=[8]", "--batch_size=16",
             "--warmup_env_steps=100", "--updates_per_env_step=0.5", "--replay_size=2000", "--warm_up_s=1",
             "--measure_s=10", "--simulate_s=0.1", "--train_for_env_steps=600", "--episodes=1",
             "--thresholds=-3000", f"--output={tmp_path}/out"]  # fmt: skip
    assert benchmark.main(flags) == 0, capfd.readouterr()
    assert "async local 1 x 2 to -3000, divided by sync: steps " in capfd.readouterr().out
    data = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    names = ["sync local 1 x 2", "async local 1 x 2"]
    assert [variant["variant"]["name"] for variant in data["variants"]] == names
    results = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    figures = [result["figures"] for result in results if "window_s" in result["figures"]]
    windows_s = {name: each["window_s"] for name, each in zip(names, figures, strict=True)}
    for variant in data["variants"]:
        throughput, learning = variant["throughput"], variant["learning"]
        # The contract allows so many updates to be owed at either end of the window (`buffers/replay.py`).
        most_owed = 2 + 0.5 * 3 * 2 + TrainConfig().replay_ratio_tolerance
        steps_per_s, window_s = throughput["env_steps_per_s"]["median"], windows_s[variant["variant"]["name"]]
        owed_per_s = abs(0.5 * steps_per_s - throughput["sgd_steps_per_s"]["median"])
        assert owed_per_s * window_s <= most_owed
        updates_per_step = throughput["sgd_steps_per_s"]["median"] / steps_per_s
        assert throughput["samples_per_env_step"]["median"] == pytest.approx(16 * updates_per_step)
        blocked = [throughput["shares"][f"replay/{side}_blocked"]["median"] for side in ("learner", "workers")]
        assert all(0.0 <= share <= 1.0 for share in blocked)
        assert sum(blocked) > 0.0, "one side always waits for the other"
        assert learning["env_steps"]["median"] >= 600
        (curve,) = learning["curves"].values()
        assert curve[-1][0] >= 400, "when the first episodes have ended"
        assert learning["evaluated_return"]["median"] < 0.0
    (compared,) = data["mode_comparisons"]
    assert (compared["variant"]["name"], compared["num_neither"]) == (names[1], 0)
    assert compared["env_steps"]["median"] > 0.0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "`replay/workers_blocked`" in report
    assert "Return over wall-clock time" in report


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_hogwild_runs_with_several_numbers_of_workers_are_compared_and_can_be_drawn(tmp_path, capfd):
    flags = ["--env=CartPole-v1", "--algo=a2c", "--backend=hogwild", "--num_workers=1,2", "--seeds=1", "--measure_s=0",
             "--episodes=0", "--train_for_env_steps=30000", "--encoder_mlp_layers=[8]", "--num_envs_per_worker=4",
             "--rollout=8", f"--output={tmp_path}/out"]  # fmt: skip
    assert benchmark.main(flags) == 0, capfd.readouterr()
    data = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    one, two = data["speedups"]
    assert one["speedup"]["median"] == one["efficiency"]["median"] == 1.0
    rates = [found["env_steps_per_s"]["median"] for found in (one, two)]
    assert two["speedup"]["median"] == pytest.approx(rates[1] / rates[0])
    assert two["efficiency"]["median"] == pytest.approx(two["speedup"]["median"] / 2)
    assert two["sgd_steps_per_s"]["median"] == pytest.approx(rates[1] / 32, rel=0.1)
    totals = [variant["learning"]["env_steps"]["median"] for variant in data["variants"]]
    assert all(30_000 <= total < 30_200 for total in totals)
    assert "learning_hogwild_local_2_x_4_seed0" in str(sorted((tmp_path / "out" / "runs").iterdir()))

    runs = [str(path) for path in sorted((tmp_path / "out" / "runs").iterdir())]
    assert plot.main(["speedup", *runs, f"--out={tmp_path}/speedup.png"]) == 0
    assert "efficiency" in capfd.readouterr().out
    assert plot.main(["compare", *runs, "--x=per_worker_steps", f"--out={tmp_path}/compare.png"]) == 0


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_runs_of_several_ranks_are_compared_and_can_be_drawn(tmp_path, capfd):
    flags = [*TINY, "--modes=sync", "--num_ranks=1,2", "--warm_up_s=0.5", "--measure_s=10", "--episodes=0",
             "--train_for_env_steps=3000", f"--output={tmp_path}/out"]  # fmt: skip
    assert benchmark.main(flags) == 0, capfd.readouterr()
    data = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert list(data["simulation"]) == ["1 x 8", "2 x 8"]
    found = {(each["kind"], each["variant"]["name"]): each for each in data["speedups"]}
    assert {each["unit"] for each in data["speedups"]} == {"ranks"}
    one, two = (found["throughput", f"sync local 1 x 8{ranks}"] for ranks in ("", " 2 ranks"))
    rates = [each["env_steps_per_s"]["median"] for each in (one, two)]
    assert two["efficiency"]["median"] == pytest.approx(rates[1] / rates[0] / 2)
    # Each rank has 32 samples in a minibatch, used once: a step of the optimizer for 64 steps of the environments.
    samples_of_a_step = [rate / each["sgd_steps_per_s"]["median"] for rate, each in zip(rates, (one, two), strict=True)]
    assert samples_of_a_step == pytest.approx([32, 64], rel=0.25)  # the windows of both rates differ a little
    of_two = data["variants"][1]
    assert 0.0 < of_two["throughput"]["shares"]["profile/learner/exchange_with_ranks"]["median"] < 1.0
    assert of_two["learning"]["env_steps"]["median"] >= 3000
    assert len(of_two["learning"]["other_curves"]["0"]) == 1
    assert "Exchanges between ranks" in (tmp_path / "out" / "report.md").read_text()

    runs = [str(path) for path in sorted((tmp_path / "out" / "runs").glob("throughput_*"))]
    assert plot.main(["speedup", *runs, f"--out={tmp_path}/speedup.png"]) == 0
    assert "against 1 rank" in capfd.readouterr().out
    assert plot.main(["compare", *runs, "--x=per_rank_steps", f"--out={tmp_path}/compare.png"]) == 0


@pytest.mark.usefixtures("probes_here")
def test_settings_of_another_backend_than_the_modes_are_refused(tmp_path, capfd):
    flags = ["--env=CartPole-v1", "--algo=a3c", "--modes=async", f"--output={tmp_path}/out"]
    assert benchmark.main(flags) == 2
    assert "--modes=hogwild" in capfd.readouterr().err


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_an_interrupted_benchmark_keeps_what_it_measured(tmp_path):
    flags = [*TINY, "--modes=sync", f"--output={tmp_path}/out"]
    process = QuickProcess("asyncrl.benchmark", flags, tmp_path, os.environ)
    deadline = time.monotonic() + 300
    while not (tmp_path / "out" / "runs").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 1, "pure simulation was measured"
    report = (tmp_path / "out" / "report.md").read_text()
    assert "throughput sync local 1 x 8 seed 0: not measured yet" in report


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--env=CartPol-v1"], "CartPole-v1"), (["--env=CartPole-v1", "--gamma=2"], "--gamma=2")],
)
def test_a_mistake_in_a_run_is_found_before_anything_is_measured(tmp_path, capfd, flags, said):
    assert benchmark.main([*flags, "--modes=async", f"--output={tmp_path}/out"]) == 2
    stderr = capfd.readouterr().err
    assert stderr.startswith("error: ")
    assert len(stderr.splitlines()) == 1, stderr
    assert said in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("fonts_are_open", "leaves_nothing")
def test_a_trained_policy_is_measured_against_its_own_episodes(tmp_path, capfd):
    run = [*(flag for flag in TINY if not flag.startswith(("--seeds", "--simulate"))), "--train_for_env_steps=500"]
    assert train.main([*run, f"--train_dir={tmp_path}", "--experiment=trained", "--quiet"]) == 0
    flags = [f"--from_run={tmp_path}/trained", "--seeds=1", "--modes=async,sampling", "--warm_up_s=0.5",
             "--measure_s=10", "--simulate_s=0.1", "--record_steps=50", f"--output={tmp_path}/out"]  # fmt: skip
    assert benchmark.main(flags) == 0, capfd.readouterr()
    data = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert "checkpoint_" in data["about"]["policy"]
    trained, sampled = (variant["throughput"] for variant in data["variants"])
    assert trained["samples_per_env_step"]["median"] == 1.0
    assert sampled["samples_per_env_step"]["median"] == sampled["sgd_steps_per_s"]["median"] == 0.0
    simulated = json.loads((tmp_path / "out" / "results.jsonl").read_text().splitlines()[0])
    assert simulated["figures"]["replayed"] is True
    weights = [
        checkpoint.load(checkpoint.latest(folder / "checkpoints")).model
        for folder in (tmp_path / "trained", tmp_path / "out" / "runs" / "throughput_async_local_1_x_8_seed0")
    ]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0] if name.startswith(("actor", "policy")))
