"""Who is started again, when, and when a run is given up; processes and time are fakes."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from layouts import vector_observation

from asyncrl.buffers.arena import Arena
from asyncrl.buffers.control import RunControl, WorkerDeaths
from asyncrl.config.machine import Machine
from asyncrl.config.plan import resolve
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.modes.choice import arena_specs
from asyncrl.observers.reports import RestartReport
from asyncrl.processes.children import ChildFailure, ChildResult, LearnerDied, RunFailed
from asyncrl.processes.torchrun import RankAddress
from asyncrl.run import restart_policy
from asyncrl.run.restart_policy import CLEAN_UP_TIMEOUT_S, RestartPolicy, WorkerSpec

WORKERS = ("rollout-0", "rollout-1")
WORKERS_OF = {name: (worker_idx,) for worker_idx, name in enumerate(WORKERS)}


class FakeProcessManager:
    """Keeps what it is told; `later` holds the outcomes that come while somebody waits."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.killed: dict[str, str] = {}
        self.later: list[ChildFailure | ChildResult] = []
        self.lets_go = True

    @property
    def running(self) -> list[str]:
        return sorted(set(self.started))

    def start(self, name: str, target: Callable[..., Any], *args: Any) -> None:
        self.started.append(name)

    def reap(self, name: str) -> bool:
        return self.lets_go

    def wait(self, timeout_s: float) -> list[ChildFailure | ChildResult]:
        outcomes, self.later = self.later, []
        return outcomes

    def kill_hung(self, name: str, reason: str) -> None:
        self.killed[name] = reason


class Run:
    """Two rollout workers of asynchronous PPO with local inference, whose clock the test moves."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        workers: Mapping[str, Sequence[int]] = WORKERS_OF,
        rank: RankAddress | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1000.0
        clock = types.SimpleNamespace(monotonic=self._read_clock)
        monkeypatch.setattr(restart_policy, "time", clock)
        config = TrainConfig(env="A-v0", num_workers=2, num_envs_per_worker=2, rollout=4, batch_size=16, **settings)
        plan = resolve(config, Machine(cores=2))
        spec = EnvSpec("A-v0", vector_observation(2), DiscreteAction(2, 0), None)
        arena = Arena.create(arena_specs(spec, plan, num_weights=8))
        self.control = RunControl(arena, 2)
        self.worker_deaths = WorkerDeaths(arena, has_server=False, has_slots=True)
        setup = types.SimpleNamespace(config=config, control=self.control, worker_deaths=self.worker_deaths, rank=rank)
        setup.for_restart = lambda number: setup
        self.manager, self.reports = FakeProcessManager(), []
        specs = [WorkerSpec(name, print, (), indices) for name, indices in workers.items()]
        self.restarts = RestartPolicy(self.manager, setup, specs, wake_all=self._settle, send=self.reports.append)
        self.settles = True

    def _read_clock(self) -> float:
        self.now += 0.01
        return self.now

    def _settle(self) -> None:
        for worker_idx in self.worker_deaths.pending_for_learner() if self.settles else []:
            self.worker_deaths.acknowledge_as_learner(worker_idx)

    def look_after(self, seconds: float) -> None:
        self.now += seconds
        self.restarts.update()

    def look_after_each_second(self, seconds: int) -> None:
        for _ in range(seconds):
            self.look_after(1.0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch, max_restarts=2)


def raised(child: str, text: str = "boom", **kwargs: Any) -> ChildFailure:
    return ChildFailure(child, f"{child} failed: {text}", f"Traceback\nValueError: {text}", **kwargs)


def died(child: str) -> ChildFailure:
    return ChildFailure(child, f"{child} died: SIGKILL", "", is_death=True)


def test_what_all_raise_before_an_episode_was_finished_is_one_failure(run: Run) -> None:
    run.manager.later = [raised("rollout-1")]
    with pytest.raises(RunFailed) as caught:
        run.restarts.handle_failures([raised("rollout-0")])
    assert caught.value.summary == "rollout-0 failed: boom (2 workers failed the same way)"
    assert (caught.value.exit_code, caught.value.details.count("boom")) == (1, 1)


def test_who_fails_in_another_way_is_not_counted(run: Run) -> None:
    with pytest.raises(RunFailed) as caught:
        run.restarts.handle_failures([raised("rollout-0"), raised("rollout-1", "crash")])
    assert caught.value.summary == "rollout-0 failed: boom"


def test_a_death_before_an_episode_was_finished_may_be_the_machines_doing(run: Run) -> None:
    run.restarts.handle_failures([died("rollout-0")])
    run.look_after(1.0)
    assert run.manager.started == [*WORKERS, "rollout-0"]


def test_a_pool_that_dies_is_started_again_when_the_slots_of_all_its_workers_are_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, {"pool-0": (0, 1)}, max_restarts=2)
    run.settles = False
    run.restarts.handle_failures([died("pool-0")])
    assert run.worker_deaths.pending_for_learner() == [0, 1]
    for worker_idx in (0, 1):
        run.look_after(1.0)
        assert run.manager.started == ["pool-0"]
        run.worker_deaths.acknowledge_as_learner(worker_idx)
    run.look_after(1.0)
    assert run.manager.started == ["pool-0", "pool-0"]


def test_who_raises_later_is_started_again_after_a_while_that_grows(run: Run) -> None:
    run.control.has_finished_episode = True
    for delay_s in (0.1, 0.2):
        before = len(run.manager.started)
        run.restarts.handle_failures([raised("rollout-0")])
        run.look_after(delay_s - 0.09)
        assert len(run.manager.started) == before
        run.look_after(0.2)
        assert run.manager.started[before:] == ["rollout-0"]
    assert [report.child for report in run.reports if isinstance(report, RestartReport)] == ["rollout-0"] * 2


def test_used_up_restarts_end_the_run_with_the_first_and_the_last_traceback(run: Run) -> None:
    run.control.has_finished_episode = True
    run.restarts.handle_failures([raised("rollout-0", "first")])
    run.restarts.handle_failures([raised("rollout-1", "second")])
    with pytest.raises(RunFailed) as caught:
        run.restarts.handle_failures([raised("rollout-0", "third")])
    assert caught.value.exit_code == 3
    assert "max_restarts=2 in 600 s" in caught.value.summary
    assert "first: Traceback\nValueError: first" in caught.value.details
    assert "last: Traceback\nValueError: third" in caught.value.details
    assert "second" not in caught.value.details


def test_what_a_worker_cannot_be_helped_with_ends_the_run(run: Run) -> None:
    run.control.has_finished_episode = True
    with pytest.raises(RunFailed) as caught:
        run.restarts.handle_failures([raised("rollout-0", exit_code=3, is_final=True)])
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("failure", "kind"), [(died("learner"), LearnerDied), (raised("learner"), RunFailed)])
def test_nothing_goes_on_without_the_learner(run: Run, failure: ChildFailure, kind: type[RunFailed]) -> None:
    run.control.has_finished_episode = True
    with pytest.raises(RunFailed) as caught:
        run.restarts.handle_failures([failure])
    assert type(caught.value) is kind


@pytest.mark.parametrize("rank", [None, RankAddress(0, 2, 0, 2, "localhost", 1, False, "meeting")])
def test_nobody_follows_before_all_is_settled_and_that_is_not_waited_for_without_an_end(
    monkeypatch: pytest.MonkeyPatch, rank: RankAddress | None
) -> None:
    run = Run(monkeypatch, rank=rank, env_start_timeout=20.0)
    run.settles = False
    run.restarts.handle_failures([died("rollout-1")])
    run.look_after(3600.0)  # all processes were stopped meanwhile
    timeout_s = CLEAN_UP_TIMEOUT_S if rank is None else CLEAN_UP_TIMEOUT_S + 20.0
    run.look_after_each_second(int(timeout_s) - 5)
    assert run.manager.started == list(WORKERS)
    with pytest.raises(RunFailed, match=f"rollout worker 1 could not be started again.* within {timeout_s:g} s"):
        run.look_after_each_second(5)


def test_a_process_that_the_kernel_does_not_let_go_of_has_no_successor(run: Run) -> None:
    run.manager.lets_go = False
    with pytest.raises(RunFailed, match="its process does not end"):
        run.restarts.handle_failures([died("rollout-0")])


@pytest.mark.parametrize("end", ["request_stop", "end"])
def test_nobody_is_started_while_the_run_ends(run: Run, end: str) -> None:
    run.restarts.handle_failures([died("rollout-0")])
    getattr(run.control, end)()
    run.restarts.handle_failures([raised("rollout-1")])
    run.look_after(CLEAN_UP_TIMEOUT_S + 1.0)
    assert run.manager.started == list(WORKERS)
    assert [report.child for report in run.reports] == ["rollout-0"], "nobody is told of a restart that does not come"


def test_only_who_stands_still_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, env_step_timeout=150.0)
    for note in (lambda: run.control.count_steps(0, 1), lambda: run.control.count_turn(0)):  # it steps, or waits
        for _ in range(320):
            note()
            run.look_after(0.5)
    assert list(run.manager.killed) == ["rollout-1"]
    said = run.manager.killed["rollout-1"]
    assert said.startswith(
        "has not stepped, and has neither made nor reset an environment for 300 s and was killed (--env_sta"
    )


def test_a_worker_that_has_stepped_has_the_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, env_step_timeout=150.0)
    run.control.count_steps(1, 1)
    for _ in range(310):
        run.control.count_turn(0)
        run.look_after(0.5)
    assert list(run.manager.killed) == ["rollout-1"]
    assert "made no environment step for 150 s" in run.manager.killed["rollout-1"]
    assert "--env_step_timeout" in run.manager.killed["rollout-1"]
