"""`asyncrl train` as a user meets it: what it learns, says, leaves behind, and how it stops."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import psutil
import pytest
from command import PROBE, Command, wait_until

import asyncrl
from asyncrl import train
from asyncrl.config import host
from asyncrl.learner.worker import LearnerOutcome
from asyncrl.run import preflight, runner
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")


SUMMARY_NAMES = {
    *("status", "env_steps", "wall_s", "startup_s", "fps", "ep_rew_mean", "restarts", "checkpoint"),
    *("lag_mean", "lag_p95", "lag_max", "lag_over_bound", "lag_age_ms", "lag_bound", "dropped_samples", "error"),
}
METRIC_NAMES = {
    *("rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps", "time/total_env_steps"),
    *("train/loss", "train/policy_gradient_loss", "train/value_loss", "train/entropy_loss", "train/entropy"),
    *("train/approx_kl", "train/clip_fraction", "train/explained_variance", "train/learning_rate"),
    "train/effective_sample_size",
    *("train/grad_norm", "train/n_updates"),
    *("lag/mean", "lag/p95", "lag/max", "lag/over_bound", "lag/age_ms"),
    *("perf/rollout_busy", "perf/learner_busy", "perf/slots_ready", "perf/dropped_samples", "perf/restarts"),
}
CENTRAL_METRIC_NAMES = {"perf/inference_busy", "perf/inference_batch_size"}
EVALUATION_NAMES = {
    *("mean_reward", "std_reward", "ci95", "mean_ep_length", "episodes", "env_steps", "checkpoint"),
    *("actions", "deterministic"),
}


def test_cart_pole_is_learned_and_evaluated(start: Callable[..., Command]) -> None:
    training = start(
        "asyncrl.train",
        *("--env=CartPole-v1", "--train_for_env_steps=70000", "--seed=1", "--report_every_s=0.5"),
        is_fresh=True,
    )
    code, stdout, stderr = training.finish()
    assert code == 0, stderr
    assert "classic_control" in stdout, "the preset is named"
    summary = training.summary()
    assert set(summary) >= SUMMARY_NAMES
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 70000
    assert summary["ep_rew_mean"] >= 150
    records = training.records()
    assert {name for record in records for name in record} >= METRIC_NAMES
    assert records[-1]["time/total_env_steps"] == summary["env_steps"]

    code, stdout, stderr = start("asyncrl.evaluate", "--episodes=10", "--json").finish()
    assert code == 0, stderr
    result = json.loads(stdout)
    assert set(result) == EVALUATION_NAMES
    assert result["episodes"] == 10
    assert result["env_steps"] == summary["env_steps"]
    assert result["mean_reward"] >= 150


@pytest.mark.parametrize("mode", ["--serial_mode", "--inference_mode=local"])
def test_an_exception_of_every_environment_is_shown_at_the_end_and_not_for_each_of_them(
    start: Callable[..., Command], mode: str
) -> None:
    # Later than the steps that are made to look at the environment before the run.
    failing = start("asyncrl.train", "--env=probe_envs:Failing-v0", '--env_kwargs={"fail_at": 20}', mode, *PROBE)
    code, _, stderr = failing.finish()
    assert code == 1
    # Eight environments failed three times each.
    assert stderr.count("Traceback") == 1, stderr
    assert stderr.count("ZeroDivisionError: the probe was asked to fail") == 1
    assert "probe_envs.py" in stderr
    package = Path(asyncrl.__file__).parent
    assert f'"{package}{os.sep}' not in stderr.split("error: ")[0], "frames of the package are of no use to a user"
    assert "rollout worker " in stderr
    assert "failed in step at its step 60" in stderr.partition("error: ")[2]
    assert failing.summary()["status"] == "failed"


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
    code, stdout, stderr = training.finish()
    assert code == 130
    assert "Traceback" not in stderr
    assert stderr.count("Ctrl-C: stopping after the current update") == 1
    summary, saved = training.summary(), training.checkpoint()
    assert summary["status"] == "interrupted"
    assert saved is not None
    end = stdout[stdout.index("interrupted: ") :]
    assert f"interrupted: {summary['env_steps']:,} of " in end
    assert f"newest checkpoint: {saved.relative_to(training.folder.parents[1])}" in end
    commands = [shlex.split(line) for line in end.splitlines() if line.startswith("  ") and "asyncrl " in line]
    assert all(Path(command[0]).name == "asyncrl" for command in commands)
    assert [command[1:] for command in commands] == [
        ["evaluate", "runs/run"],
        ["train", "--train_dir=runs", "--experiment=run"],
        ["plot", "runs/run"],
    ]
    assert summary["checkpoint"].endswith(saved.name)
    assert checkpoint.load(saved).state["env_steps"] == summary["env_steps"] > 0


def test_ctrl_c_before_there_is_a_run_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "run", mock.Mock(side_effect=KeyboardInterrupt))
    assert train.main(["--env=CartPole-v1", f"--train_dir={tmp_path}/runs"]) == 130


@pytest.mark.skipif(host.START_METHOD != "forkserver", reason="unavoidable: no fork server")
def test_ctrl_c_while_modules_are_loaded_shows_nothing_of_them(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", *PROBE, is_fresh=True)
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


def test_a_run_that_trained_nothing_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--env=CartPole-v1", "--serial_mode", "--train_for_seconds=0.000001", "--experiment=run"]
    assert train.main([*flags, f"--train_dir={tmp_path}", *PROBE]) == 1
    captured = capfd.readouterr()
    assert "error: Nothing was trained: the time limit of 1e-06 s" in captured.err
    assert "failed: 0 of " in captured.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_time_limit_that_was_exceeded_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = LearnerOutcome(env_steps=640, checkpoint=None, error=None, elapsed_s=47.0)
    monkeypatch.setattr(runner, "run_serial", lambda *_: outcome)
    flags = ["--env=CartPole-v1", "--serial_mode", "--train_for_seconds=25", "--experiment=run"]
    assert train.main([*flags, f"--train_dir={tmp_path}", *PROBE]) == 0
    assert "warning: The time limit of 25 s was exceeded, the run took 47 s" in capfd.readouterr().err


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["runner", "all processes"])
def test_sigterm_saves_too(start: Callable[..., Command], send: Callable[[int, int], None]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", "--async_rl=False", *PROBE)
    training.wait_until_trained()
    send(training.process.pid, signal.SIGTERM)
    code, _, stderr = training.finish()
    assert code == 143
    assert stderr.splitlines()[-2:] == [
        "SIGTERM: stopping after the current update, then saving.",
        "Ctrl-C again stops now and loses what was trained since the last checkpoint.",
    ]
    saved = training.checkpoint()
    assert saved is not None
    assert checkpoint.load(saved).model


def test_a_terminal_that_is_closed_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    process_id, terminal = pty.fork()
    if process_id == 0:
        os.chdir(tmp_path)
        os.environ.update(TERM="xterm", PYTHONPATH=str(Path(asyncrl.__file__).parents[1]))
        flags = ("--env=CartPole-v1", "--train_dir=runs", "--experiment=run", *PROBE)
        os.execv(sys.executable, [sys.executable, "-m", "asyncrl.train", *flags])
    metrics = tmp_path / "runs" / "run" / "metrics.jsonl"

    def has_trained() -> bool:
        if select.select([terminal], [], [], 0.0)[0]:  # what nobody reads would hold up the run
            os.read(terminal, 65536)
        return metrics.exists() and "train/loss" in metrics.read_text()

    try:
        wait_until(has_trained, 100.0, "training is reported")
    finally:
        os.close(terminal)
        _, status = os.waitpid(process_id, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    folder = metrics.parent
    assert json.loads((folder / "summary.json").read_text())["status"] == "interrupted"
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None and checkpoint.load(saved).model


def test_ctrl_c_twice_stops_in_the_middle_of_an_update(start: Callable[..., Command], tmp_path: Path) -> None:
    stalling = ("--env=CartPole-v1", "--import_modules=stalling_encoder", "--encoder=stalling")
    training = start("asyncrl.train", *stalling, *PROBE)
    training.wait_until((tmp_path / "stalled").exists, "an update is under way")
    os.killpg(training.process.pid, signal.SIGINT)
    time.sleep(1.0)  # two at once would be one request
    assert training.process.poll() is None, "the first Ctrl-C waits for the update to end"
    os.killpg(training.process.pid, signal.SIGINT)
    code, stdout, stderr = training.finish()
    assert code == 130
    assert "Traceback" not in stderr
    assert stderr.index("Ctrl-C: stopping after the current update") < stderr.index("Second Ctrl-C: stopped at once")
    assert "did not end within" not in stderr
    assert "interrupted: 0 of" in stdout
    assert training.summary()["status"] == "interrupted"
    assert training.checkpoint() is None


def test_what_the_process_was_before_it_was_this_command_is_not_its_time(tmp_path: Path) -> None:
    given_at = time.monotonic()
    slept_s = 1.0
    shell = ("bash", "-c", f'sleep {slept_s}; exec "$0" "$@"')
    flags = ("--env=CartPole-v1", "--serial_mode", "--train_for_env_steps=64", *PROBE)
    training = Command("asyncrl.train", *flags, cwd=tmp_path, prefix=shell)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    assert 0.0 < training.summary()["wall_s"] < time.monotonic() - given_at - slept_s
