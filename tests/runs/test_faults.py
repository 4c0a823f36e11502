"""Processes that die, hang or crash: what is said, who is started again, and how it ends; rows: `test_rows`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import faulty_envs
import psutil
import pytest
from command import PROBE, Command, wait_until
from killing import pids
from run_helper import FinishedRun, run

from asyncrl.config import host
from asyncrl.learner.worker import LearnerOutcome
from asyncrl.observers.reports import RestartReport, RolloutReport
from asyncrl.run import runner
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

HOGWILD = ("--backend=hogwild", "--algo=a2c")

BACKENDS, IDS = ((), ("--backend=hogwild", "--algo=a2c")), ("actor-learner", "hogwild")


def restarts(finished: FinishedRun) -> list[RestartReport]:
    return [report for report in finished.reports if isinstance(report, RestartReport)]


def train(start: Callable[..., Command], env: str, *flags: str, **env_kwargs: Any) -> Command:
    return start(
        "asyncrl.train", f"--env=faulty_envs:{env}-v0", f"--env_kwargs={json.dumps(env_kwargs)}", *PROBE, *flags
    )


@pytest.mark.parametrize("mode", ["--inference_mode=central", "--backend=hogwild"])
def test_workers_that_all_fail_at_once_are_one_failure(
    start: Callable[..., Command], mode: str, tmp_path: Path
) -> None:
    hogwild = ("--algo=a2c",) if "hogwild" in mode else ()
    failing = train(start, "FailsToReset", mode, *hogwild, folder=str(tmp_path))
    code, _, stderr = failing.finish()
    assert code == 1
    assert stderr.count("Traceback") == 1, stderr
    assert stderr.count("ValueError: the arm is not calibrated") == 1
    assert "(2 workers failed the same way)" in stderr
    assert failing.summary()["restarts"] == 0


def test_a_worker_that_hangs_is_killed_with_its_stack_and_replaced(start: Callable[..., Command]) -> None:
    training = train(start, "Stands", "--env_step_timeout=1", only=5)
    log = training.folder / "logs" / "rollout-1.log"
    training.wait_until(lambda: len(pids(log)) == 2, "the worker was replaced")
    training.process.terminate()
    code, _, stderr = training.finish()
    assert code == 143, stderr
    assert "rollout worker 1 made no environment step for 1 s and was killed" in stderr
    assert training.summary()["restarts"] == 1
    assert "_stand_for_ever" in log.read_text()
    assert "Current thread" not in (training.folder / "logs" / "rollout-0.log").read_text()


@pytest.mark.parametrize("backend", [{}, {"backend": "hogwild", "algo": "a2c", "num_epochs": 1}], ids=IDS)
def test_others_go_on_while_a_worker_hangs(
    backend: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 0.2)
    sign = tmp_path / "sign"
    kwargs = {"only": 0, "run_seed": 1, "sign": str(sign)}
    finished = run(tmp_path, "async-local", "faulty_envs:Stands-v0", env_kwargs=kwargs, env_step_timeout=1e5, **backend)
    assert sign.exists()
    assert finished.outcome.is_complete
    hung, other = steps_of_workers(finished)
    assert other > 3000 > hung
    assert "rollout-0 did not end within 0.2 s and was killed" in caplog.text


def test_a_segmentation_fault_is_named_and_traced(start: Callable[..., Command]) -> None:
    training = train(start, "Crashes", *HOGWILD, only=4)
    log = training.folder / "logs" / "rollout-1.log"
    training.wait_until(lambda: len(pids(log)) == 2, "the worker was replaced")
    training.process.terminate()
    code, _, stderr = training.finish()
    assert code == 143, stderr
    assert "rollout worker 1 died: SIGSEGV; it is restarted" in stderr
    trace = log.read_text()
    assert "Fatal Python error: Segmentation fault" in trace
    assert "_misbehave" in trace


def test_used_up_restarts_end_the_run_after_it_has_saved(start: Callable[..., Command]) -> None:
    training = train(start, "KeepsCrashing", "--max_restarts=2", "--inference_mode=central", at=200)
    code, _, stderr = training.finish()
    assert code == 3, stderr
    assert "the restarts are used up (max_restarts=2 in 600 s)" in stderr
    assert "first: rollout worker" in stderr and "last: rollout worker" in stderr
    assert training.summary()["status"] == "failed"
    assert training.summary()["restarts"] == 2
    saved = training.checkpoint()
    assert saved is not None
    assert checkpoint.load(saved).model


def steps_so_far(command: Command) -> int:
    records = command.records()
    return records[-1]["env_steps"] if records else 0


def pid_of(command: Command, role: str) -> int:
    log = command.folder / "logs" / f"{role}.log"
    wait_until(lambda: bool(pids(log)), 60.0, f"{role} has begun")
    return pids(log)[-1]


def test_the_death_of_the_learner_ends_the_run_with_the_way_to_go_on(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", "--save_every_s=0.5", *HOGWILD, *PROBE)
    training.wait_until(lambda: training.checkpoint() is not None, "a checkpoint is saved")
    os.kill(pid_of(training, "learner"), signal.SIGKILL)
    code, _, stderr = training.finish()
    saved = training.checkpoint()
    assert code == 1
    assert "error: learner died: SIGKILL, possibly out of memory" in stderr
    assert saved is not None
    assert str(saved.name) in stderr
    command = shlex.split(stderr.strip().rpartition("To resume from it: ")[2])
    assert (Path(command[0]).name, command[1]) == ("asyncrl", "train")
    steps = checkpoint.saved_env_steps(saved)
    goes_on = start("asyncrl.train", *command[2:], f"--train_for_env_steps={steps + 500}")
    code, _, stderr = goes_on.finish()
    assert code == 0, stderr
    assert f"Resuming from {saved.relative_to(training.folder.parents[1])}" in stderr
    assert goes_on.summary()["env_steps"] >= steps + 500


@pytest.mark.parametrize("backend", BACKENDS, ids=IDS)
def test_a_run_goes_on_by_itself_when_its_learner_dies_if_it_may(
    start: Callable[..., Command], backend: tuple[str, ...]
) -> None:
    # The steps take several seconds: the learner is killed before their end.
    num_steps = 40_000 if backend else 20_000
    flags = ("--save_every_s=0.5", "--max_learner_restarts=1", f"--train_for_env_steps={num_steps}", *backend)
    training = start("asyncrl.train", "--env=CartPole-v1", *flags, *PROBE)
    training.wait_until(lambda: training.checkpoint() is not None, "a checkpoint is saved")
    first = pid_of(training, "learner")
    os.kill(first, signal.SIGKILL)
    code, _, stderr = training.finish()
    assert code == 0, stderr
    assert "the run restarts from its last checkpoint" in stderr
    assert "Resuming from" in stderr
    assert training.summary()["status"] == "completed"
    assert training.summary()["restarts"] == 1
    steps = [record["time/total_env_steps"] for record in training.records()]
    assert steps == sorted(steps)


@pytest.mark.parametrize("flags", [(), ("--env_step_timeout=100000",)], ids=["at work", "in a library"])
def test_nothing_outlives_the_runner(start: Callable[..., Command], flags: tuple[str, ...], tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    if flags:
        training = train(start, "HoldsTheInterpreter", *flags, sign=str(sign))
        training.wait_until(sign.exists, "a worker stands in a library")
    else:
        training = start("asyncrl.train", "--env=CartPole-v1", "--inference_mode=central", *PROBE)
        training.wait_until_trained()
    training.wait_until(lambda: len(training.session()) >= 5, "runner, fork server, learner and two workers run")
    training.process.kill()
    training.process.wait()
    wait_until(lambda: not training.session(), 30.0, "all descendants are gone")
    assert training.session() == []


@pytest.mark.skipif(host.START_METHOD != "forkserver", reason="unavoidable: no fork server")
def test_the_death_of_the_fork_server_costs_nothing(start: Callable[..., Command]) -> None:
    training = start("asyncrl.train", "--env=CartPole-v1", *PROBE)
    training.wait_until_trained()
    worker = psutil.Process(pid_of(training, "rollout-0"))
    fork_server = psutil.Process(worker.ppid())
    assert fork_server.ppid() == training.process.pid
    fork_server.kill()
    time.sleep(0.5)
    assert worker.is_running()
    worker.kill()
    log = training.folder / "logs" / "rollout-0.log"
    training.wait_until(lambda: len(pids(log)) == 2, "the worker was replaced")
    before = steps_so_far(training)
    training.wait_until(lambda: steps_so_far(training) >= before + 5000, "it continues")
    training.process.terminate()
    code, _, stderr = training.finish()
    assert code == 143, stderr
    assert "the fork server died and was restarted" in stderr
    assert "rollout worker 0 died" in stderr
    assert training.summary()["restarts"] == 1


def test_a_worker_that_limps_is_no_worker_that_hangs(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        "async-local",
        "faulty_envs:Limps-v0",
        env_kwargs={"only": 0, "run_seed": 1, "sign": str(tmp_path / "sign")},
        env_step_timeout=2.0,
        recorded=True,
        train_for_env_steps=3000,
    )
    assert restarts(finished) == []
    assert finished.outcome.is_complete
    slow, quick = steps_of_workers(finished)
    assert slow > 0
    assert quick > 1.5 * slow, "in step with the slow one they would make as many"


def steps_of_workers(finished: FinishedRun) -> list[int]:
    steps = [0] * finished.plan.num_workers
    for report in finished.reports:
        if isinstance(report, RolloutReport):
            steps[report.worker_idx] += report.env_steps
    return steps


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    with mock.patch("time.time", faulty_envs.jumping_time):
        finished = run(tmp_path, "async-central", "faulty_envs:TurnsTheClock-v0", env_step_timeout=5.0)
    assert restarts(finished) == []
    assert isinstance(finished.outcome, LearnerOutcome)
    assert finished.outcome.is_complete
