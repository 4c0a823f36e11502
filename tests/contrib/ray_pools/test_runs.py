"""Whole runs whose rollout workers are in pools of a Ray cluster: every row that arrives, and what may die."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import PROBE, Command
from contrib.ray_pools import ray_cluster
from contrib.ray_pools.ray_cluster import RayCluster
from ledger_envs import count_started, read_ledgers
from row_cases import ENV, Case
from row_checks import Counts, check_lag, check_on_policy, check_replay
from run_helper import FinishedRun, run

from asyncrl.buffers.shared_tensors import saved_worker_steps
from asyncrl.config.plan import PLACES_OF_A_WORKER
from asyncrl.contrib.ray_pools.sent_rows import rows_in_flight
from asyncrl.inference.policy import load_policy
from asyncrl.observers.reports import RestartReport
from asyncrl.processes.children import RunFailed
from asyncrl.storage import checkpoint

pytestmark = [pytest.mark.usefixtures("module_leaves_nothing"), pytest.mark.timeout(480)]

TESTS = Path(__file__).parents[2]
PATIENCE_S = 180.0
NUM_ENVS = 16
REMOTE: dict[str, Any] = {
    "cluster": "ray",
    "num_workers": "auto",
    "num_remote_hosts": 2,
    "stagger_episodes": False,  # a ledger cannot tell whether a life ended where its episode was shortened
    "ray_runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "helpers")])}},
}


GRADIENTS: dict[str, Any] = {"backend": "hogwild", "algo": "a2c", "hogwild_mode": "gradients", "num_epochs": 1}


@pytest.fixture(scope="module")
def cluster(module_leaves_nothing: None) -> Iterator[RayCluster]:
    with ray_cluster.started() as made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.1)


class Killer(threading.Thread):
    """Kills what `victim` returns, `count` times, each time when its environments are made again; then opens the gate.

    Environments make few steps before the gate is open, so the run needs all of its workers.
    """

    def __init__(self, ledgers: Path, count: int, victim: Callable[[], psutil.Process], num_envs: int) -> None:
        super().__init__(daemon=True)
        self._ledgers, self._count, self._victim, self._num_envs = ledgers, count, victim, num_envs
        self.num_killed = 0

    def run(self) -> None:
        try:
            for killed in range(self._count + 1):
                self._await_environments(self._num_envs + killed * self._num_envs // 2)
                if killed < self._count:
                    self._victim().kill()
                    self.num_killed += 1
        finally:
            (self._ledgers / "gate").touch()

    def _await_environments(self, count: int) -> None:
        wait_until(lambda: count_started(self._ledgers) >= count)


def run_case(
    case: Case,
    folder: Path,
    cluster: RayCluster,
    victim: Callable[[], psutil.Process] = psutil.Process,
    count: int = 0,
    **more: Any,
) -> tuple[FinishedRun, Counts]:
    """A run with two workers, in two pools unless `more` says otherwise, some of which are killed; checks all rows."""
    ledgers, of_probe = folder / "ledgers", folder / "of_probe"
    ledgers.mkdir()
    of_probe.mkdir()
    settings = {**case.settings(ledgers), **REMOTE, "ray_address": cluster.address, **more}
    num_envs = 2 * settings["num_envs_per_worker"] if case.is_off_policy else NUM_ENVS
    killer = Killer(ledgers, count, victim, num_envs)
    killer.start()
    finished = run(folder, case.mode, ENV, recorded=True, spec=case.spec(of_probe), **settings)
    killer.join()
    assert finished.outcome.is_complete and finished.outcome.error is None
    assert killer.num_killed == count and len(restarts(finished)) <= count
    wait_until(lambda: not cluster.pools())  # no pool outlives its run
    plan = finished.plan
    if case.is_off_policy:
        # Each time the rows of a pool that were under way, and at the end those of all pools.
        in_pools = (count + 1) * rows_in_flight(plan) * plan.num_envs
        return finished, check_replay(finished, ledgers, case.autoreset, count, in_pools)
    in_pools = count * plan.remote.slots_in_flight * plan.rollout * plan.envs_per_split
    counts = check_on_policy(finished, ledgers, case.autoreset, count, in_pools)
    check_lag(finished)
    assert counts.dropped == 0
    return finished, counts


def restarts(finished: FinishedRun) -> list[RestartReport]:
    return [report for report in finished.reports if isinstance(report, RestartReport)]


def test_a_pool_that_dies_beside_a_local_worker_is_started_again_and_no_row_is_lost_or_trained_twice(
    cluster: RayCluster, tmp_path: Path
) -> None:
    case = Case("ppo", "async-local", rnn_type="gru", killed="rollout")
    settings = {"num_workers": 1, "num_remote_hosts": 1}
    finished, counts = run_case(case, tmp_path, cluster, lambda: cluster.pools()[0], 1, **settings)
    assert counts.lives == NUM_ENVS + NUM_ENVS // 2
    (report,) = restarts(finished)
    assert "its actor has ended" in report.text


def test_a_worker_of_a_pool_that_dies_is_started_again_by_the_pool_and_nothing_of_a_sync_run_is_old(
    cluster: RayCluster, tmp_path: Path
) -> None:
    case = Case("ppo", "sync-local", rnn_type="lstm", killed="rollout")
    settings = {"num_remote_hosts": 1, "num_workers_per_remote_host": 2}
    finished, counts = run_case(case, tmp_path, cluster, lambda: cluster.workers()[0], 1, **settings)
    assert counts.lives > NUM_ENVS
    assert finished.largest_lag == 0
    (report,) = restarts(finished)
    assert report.child.startswith("rollout-") and "died: SIGKILL" in report.text


def test_an_environment_that_raises_in_a_pool_ends_the_run_with_its_traceback(
    cluster: RayCluster, tmp_path: Path
) -> None:
    settings = {**REMOTE, "ray_address": cluster.address, "num_remote_hosts": 1, "num_envs_per_worker": 16}
    with pytest.raises(
        RunFailed, match="pool of rollout worker 0: rollout worker 0: environment 0 failed in reset"
    ) as found:
        run(tmp_path, "sync-local", "faulty_envs:FailsToReset-v0", env_kwargs={"run_seed": 1}, **settings)
    assert "the arm is not calibrated" in found.value.details
    wait_until(lambda: not cluster.pools())


def test_a_replay_holds_every_row_of_local_and_remote_workers_and_of_the_run_before(
    cluster: RayCluster, tmp_path: Path
) -> None:
    case = Case("sac", "sync-local", n_step=3, killed="rollout")
    settings = {"num_workers": 1, "num_remote_hosts": 1}
    finished, counts = run_case(case, tmp_path, cluster, **settings)
    assert counts.trained >= finished.config.train_for_env_steps
    ledgers = tmp_path / "ledgers"
    settings |= {**REMOTE, **case.settings(ledgers), **settings, "ray_address": cluster.address}
    settings |= {"train_for_env_steps": 1300, "resume_from": Path(str(finished.outcome.checkpoint))}
    resumed = run(tmp_path, case.mode, ENV, recorded=True, spec=finished.spec, **settings)
    counts = check_replay(resumed, ledgers, case.autoreset, deaths=2, lost_with_machines=resumed.plan.num_envs)
    assert counts.trained >= 1300 and counts.lives == 2 * resumed.plan.num_envs


def test_a_replay_holds_every_row_that_came_from_pools_which_die(cluster: RayCluster, tmp_path: Path) -> None:
    case = Case("sac", "async-local", killed="rollout")
    finished, counts = run_case(case, tmp_path, cluster, lambda: cluster.pools()[0], 1)
    assert counts.lives == 4 + 2, "environments of a dead pool are made again"
    assert counts.trained >= finished.config.train_for_env_steps
    assert len(restarts(finished)) == 1


def test_gradients_of_the_workers_of_a_pool_find_the_right_actions(cluster: RayCluster, tmp_path: Path) -> None:
    settings = {**REMOTE, **GRADIENTS, "num_remote_hosts": 1, "num_workers_per_remote_host": 2}
    settings["train_for_env_steps"] = 20_000
    trained = run(tmp_path, "async-local", "ContextualBandit", ray_address=cluster.address, **settings)
    policy = load_policy(Path(str(trained.outcome.checkpoint)))
    assert policy.act(np.eye(2), deterministic=True).tolist() == [0, 1]
    steps = saved_worker_steps(checkpoint.load_state(Path(str(trained.outcome.checkpoint))))
    assert min(steps) > 0 and sum(steps) == trained.outcome.env_steps, "both workers have trained"
    wait_until(lambda: not cluster.pools())


def run_gradients(
    folder: Path, cluster: RayCluster, victim: Callable[[], psutil.Process], count: int, **more: Any
) -> FinishedRun:
    """A run of A3C whose two workers are in two pools, some of which are killed; checks how many updates it made."""
    ledgers, of_probe = folder / "ledgers", folder / "of_probe"
    ledgers.mkdir()
    of_probe.mkdir()
    case = Case("a2c-gradients", "async-local", killed="rollout")
    settings = {**case.settings(ledgers), **REMOTE, **GRADIENTS, "ray_address": cluster.address}
    settings |= {"num_gradients_to_combine": 1, "num_envs_per_worker": 2, **more}
    killer = Killer(ledgers, count, victim, 4)
    killer.start()
    finished = run(folder, case.mode, ENV, spec=case.spec(of_probe), **settings)
    killer.join()
    assert finished.outcome.is_complete and killer.num_killed == count
    lives, of_a_gradient = read_ledgers(ledgers).values(), 2 * finished.plan.rollout
    # The workers that die or whose pools do, and two whose pools are closed: two gradients each, and a rollout.
    most_lost = (count + 2) * (PLACES_OF_A_WORKER + 1) * of_a_gradient
    assert 0 <= sum(map(len, lives)) - finished.outcome.env_steps <= most_lost
    trained = finished.learner_reports[-1].num_updates * of_a_gradient
    made = sum(life.num_rows for life in lives)
    assert made - 2 * (most_lost + finished.dropped_by_workers) <= trained <= made
    wait_until(lambda: not cluster.pools())
    return finished


def test_each_gradient_that_comes_from_pools_which_die_is_one_update(cluster: RayCluster, tmp_path: Path) -> None:
    finished = run_gradients(tmp_path, cluster, lambda: cluster.pools()[0], 1, train_for_env_steps=2000)
    assert len(restarts(finished)) == 1


@pytest.mark.timeout(480)
def test_sigterm_to_all_processes_of_a_run_with_pools_saves_and_ends_it(
    cluster: RayCluster, start: Callable[..., Command], leaves_nothing: None
) -> None:
    flags = ("--env=CartPole-v1", "--cluster=ray", f"--ray_address={cluster.address}", "--num_remote_hosts=1")
    training = start("asyncrl.train", *flags, *PROBE[2:])
    training.wait_until_trained(patience_s=150.0)
    os.killpg(training.process.pid, signal.SIGTERM)
    code, _, stderr = training.finish()
    assert code == 143, stderr
    assert "Traceback" not in stderr
    assert training.checkpoint() is not None and training.summary()["restarts"] == 0
    wait_until(lambda: not cluster.pools())


def anybody(cluster: RayCluster, folder: Path) -> Callable[[], psutil.Process]:
    """Chooses a pool, a worker of one, or a bridge of the run in `folder`."""
    chosen = random.Random(50)

    def victim() -> psutil.Process:
        logs = sorted(folder.glob("pool-*.log"))
        started = [re.findall(r"pool-\d+ INFO started as process (\d+)", log.read_text()) for log in logs]
        bridges = [psutil.Process(int(pids[-1])) for pids in started]
        return chosen.choice([*cluster.pools(), *cluster.workers(), *bridges])

    return victim


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_gradients_are_applied_once_under_fifty_random_deaths(cluster: RayCluster, tmp_path: Path) -> None:
    settings = {"train_for_env_steps": 25_000, "restart_window_s": 5.0}
    finished = run_gradients(tmp_path, cluster, anybody(cluster, tmp_path), 50, **settings)
    assert len(restarts(finished)) > 25


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("learner", ["ppo", "sac"])
def test_nothing_is_lost_or_trained_twice_under_fifty_random_deaths(
    cluster: RayCluster, tmp_path: Path, learner: str
) -> None:
    victim = anybody(cluster, tmp_path)
    case = Case(learner, "async-local", rnn_type="gru" if learner == "ppo" else "", killed="rollout")
    settings = {"train_for_env_steps": 25_000, "restart_window_s": 5.0, "replay_size": 60_000}
    finished, counts = run_case(case, tmp_path, cluster, victim, 50, **settings)
    assert counts.lives > 15 * finished.plan.num_envs
    assert len(restarts(finished)) > 25


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_end_of_the_head_ends_the_run_with_a_checkpoint(
    start: Callable[..., Command], module_leaves_nothing: None
) -> None:
    with ray_cluster.started() as own:
        flags = ("--env=CartPole-v1", "--cluster=ray", f"--ray_address={own.address}", "--num_remote_hosts=2")
        training = start("asyncrl.train", *flags, "--rollout=8", "--batch_size=32", "--num_batches_per_epoch=2")
        training.wait_until_trained()
        own.head().kill()
        code, _, stderr = training.finish()
    assert code == 1
    assert "nobody can be reached there" in stderr and "To resume from it" in stderr
    assert training.checkpoint() is not None
