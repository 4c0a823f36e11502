"""`python -m asyncrl.train` as a user meets it: what it learns, says, leaves behind, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest
from command import PROBE, TESTS, Command

from asyncrl import preflight, train
from asyncrl.runtime import checkpoint

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("leaves_nothing")]


SUMMARY_NAMES = {
    *("status", "env_steps", "wall_s", "startup_s", "fps", "ep_rew_mean", "restarts", "checkpoint"),
    *("lag_mean", "lag_p95", "lag_max", "lag_age_ms", "lag_bound", "dropped_samples", "error"),
}
METRIC_NAMES = {
    *("rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/total_env_steps"),
    *("train/loss", "train/policy_gradient_loss", "train/value_loss", "train/entropy_loss", "train/entropy"),
    *("train/approx_kl", "train/clip_fraction", "train/explained_variance", "train/learning_rate"),
    *("train/grad_norm", "train/n_updates"),
    *("lag/mean", "lag/p95", "lag/max", "lag/age_ms"),
    *("perf/rollout_busy", "perf/learner_busy", "perf/slots_ready", "perf/dropped_samples", "perf/restarts"),
}
CENTRAL_METRIC_NAMES = {"perf/inference_busy", "perf/inference_batch_size"}
EVALUATION_NAMES = {
    *("mean_reward", "std_reward", "ci95", "mean_ep_length", "episodes", "env_steps", "checkpoint"),
}


def test_cart_pole_is_learned_and_evaluated(start: Callable[..., Command]) -> None:
    training = start(
        "asyncrl.train", "--env=CartPole-v1", "--train_for_env_steps=40000", "--seed=1", "--report_every_s=0.5"
    )
    code, stdout, stderr = training.finish()
    assert code == 0, stderr
    assert "classic_control" in stdout, "the preset is named"
    summary = training.summary()
    assert set(summary) >= SUMMARY_NAMES
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 40000
    assert summary["ep_rew_mean"] >= 150
    records = training.records()
    assert {name for record in records for name in record} >= METRIC_NAMES
    assert records[-1]["time/total_env_steps"] == summary["env_steps"]

    code, stdout, stderr = start("asyncrl.evaluate", "--episodes=10", "--json").finish()
    assert code == 0, stderr
    result = json.loads(stdout.splitlines()[-1])
    assert set(result) == EVALUATION_NAMES
    assert result["episodes"] == 10
    assert result["env_steps"] == summary["env_steps"]
    assert result["mean_reward"] >= 150


@pytest.mark.parametrize("mode", ["--serial_mode", "--inference_mode=local", "--inference_mode=central"])
def test_the_exception_of_an_environment_is_shown_once(start: Callable[..., Command], mode: str) -> None:
    failing = start("asyncrl.train", "--env=probe_envs:Failing-v0", '--env_kwargs={"fail_at": 0}', mode, *PROBE)
    code, _, stderr = failing.finish()
    assert code == 1
    assert stderr.count("Traceback") == 1, stderr
    assert stderr.count("ZeroDivisionError: the probe was asked to fail") == 1
    assert "probe_envs.py" in stderr
    assert f"{os.sep}asyncrl{os.sep}" not in stderr.split("error: ")[0], "frames of the package are of no use to a user"
    assert "rollout worker " in stderr
    assert "environment " in stderr
    assert "step 0" in stderr
    assert failing.summary()["status"] == "failed"


@pytest.mark.parametrize(
    ("flags", "nearest"),
    [
        (["--env=CartPol-v1"], "CartPole-v1"),
        (["--env=CartPole-v1", "--num_worker=2"], "num_workers"),
        (["--env=probe_envs:Sentinal-v0", "--inference_mode=local"], "Sentinel-v0"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(
    flags: list[str], nearest: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    code = train.main([*flags, f"--train_dir={tmp_path}/runs"])
    stderr = capfd.readouterr().err
    assert code == 2
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("error: ")
    assert nearest in stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "metric_names"),
    [
        (("--inference_mode=central",), METRIC_NAMES | CENTRAL_METRIC_NAMES),
        (("--serial_mode",), METRIC_NAMES),
        (("--algo=a3c",), set()),
    ],
    ids=["central", "serial", "hogwild"],
)
def test_ctrl_c_finishes_the_update_and_saves(
    start: Callable[..., Command], flags: tuple[str, ...], metric_names: set[str]
) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", *flags, *PROBE)
    training.wait_until_trained()
    recorded = lambda: {name for record in training.records() for name in record}  # noqa: E731
    training.wait_until(lambda: recorded() >= metric_names, "every metric was recorded")
    os.killpg(training.process.pid, signal.SIGINT)
    code, _, stderr = training.finish()
    assert code == 130
    assert "Traceback" not in stderr
    summary, saved = training.summary(), training.checkpoint()
    assert summary["status"] == "interrupted"
    assert saved is not None
    assert summary["checkpoint"].endswith(saved.name)
    assert checkpoint.load(saved).state["env_steps"] == summary["env_steps"] > 0


def test_ctrl_c_before_there_is_a_run_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "run", mock.Mock(side_effect=KeyboardInterrupt))
    assert train.main(["--env=CartPole-v1", f"--train_dir={tmp_path}/runs"]) == 130


def test_ctrl_c_while_modules_are_loaded_shows_nothing_of_them(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", *PROBE)
    training.wait_until(lambda: any(map(loads_torch, training.session())), "the fork server loads torch")
    os.killpg(training.process.pid, signal.SIGINT)
    code, _, stderr = training.finish()
    assert code == 130
    assert "Traceback" not in stderr


def loads_torch(process: psutil.Process) -> bool:
    """Whether it is the fork server, and has begun to load torch."""
    try:
        is_fork_server = "forkserver" in " ".join(process.cmdline())
        return is_fork_server and "/torch/" in Path(f"/proc/{process.pid}/maps").read_text()
    except (psutil.Error, OSError):
        return False


def test_sigterm_saves_too(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", "--async_rl=False", *PROBE)
    training.wait_until_trained()
    training.process.terminate()
    code, _, stderr = training.finish()
    assert code == 143
    assert "Traceback" not in stderr
    saved = training.checkpoint()
    assert saved is not None
    assert checkpoint.load(saved).model


def test_ctrl_c_twice_stops_in_the_middle_of_an_update(start: Callable[..., Command], tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    np.zeros(8, np.int64).tofile(counts)
    env_kwargs = json.dumps({"run_seed": 0, "counts": str(counts), "num_envs": 8})
    keeps_pace = ("--env=probe_envs:KeepsPace-v0", f"--env_kwargs={env_kwargs}")
    training = start("asyncrl.train", *keeps_pace, "--num_epochs=1000000000", *PROBE)
    training.wait_until(lambda: np.fromfile(counts, np.int64).min() == 16, "all slots are full")
    time.sleep(0.5)
    os.killpg(training.process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert training.process.poll() is None, "the first Ctrl-C waits for the update to end"
    os.killpg(training.process.pid, signal.SIGINT)
    code, _, stderr = training.finish()
    assert code == 130
    assert "Traceback" not in stderr
    assert training.summary()["status"] == "interrupted"
    assert training.checkpoint() is None


def test_what_the_process_was_before_it_was_this_command_is_not_its_time(tmp_path: Path) -> None:
    given_at = time.monotonic()
    slept_s = 2.0
    shell = ("bash", "-c", f'sleep {slept_s}; exec "$0" "$@"')
    flags = ("--env=CartPole-v1", "--serial_mode", "--train_for_env_steps=500", *PROBE)
    training = Command("asyncrl.train", *flags, cwd=tmp_path, prefix=shell)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    assert 0.0 < training.summary()["wall_s"] < time.monotonic() - given_at - slept_s
