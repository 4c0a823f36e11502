"""What becomes of children, however they end, reaches the runner; and nothing that they do can block it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import child_targets
import psutil
import pytest
from command import wait_until
from killing import pids
from signal_slot.signal_slot import EventLoop

from asyncrl.config import host
from asyncrl.processes import children as processes
from asyncrl.processes.children import ChildFailure, ChildResult, ProcessManager, allow_descriptors
from asyncrl.processes.signals import STOPPING

HELPERS = str(Path(__file__).parents[1] / "helpers")

pytestmark = pytest.mark.usefixtures("leaves_nothing")


@pytest.fixture
def manager(
    context: BaseContext, tmp_path: Path, leaves_nothing: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProcessManager]:
    monkeypatch.setattr(processes, "_EXIT_S", 30.0)  # the fork server passes an exit code on when it gets a core
    manager = ProcessManager(context, lambda name: tmp_path / f"{name}.log")
    yield manager
    manager.end(timeout_s=0.0)


def pid_of(manager: ProcessManager, name: str) -> int:
    pid = manager._running[name].process.pid
    assert pid is not None
    return pid


def outcomes_of(manager: ProcessManager, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while len(found) < count:
        for outcome in manager.wait(30.0):
            assert outcome.child not in found
            found[outcome.child] = outcome
    return found


def reports_of(manager: ProcessManager, count: int) -> list[Any]:
    reports: list[Any] = []
    while len(reports) < count:
        reports += manager.take_reports()
        time.sleep(0.001)
    return reports


def test_a_child_that_has_left_a_thread_ends_by_itself(manager: ProcessManager) -> None:
    manager.start("simulator", child_targets.leave_a_thread)
    assert outcomes_of(manager, 1) == {"simulator": ChildResult("simulator", "done")}
    child = manager._ended["simulator"]
    assert child.end(timeout_s=60.0)
    assert child.process.exitcode == 0


def test_an_exception_arrives_as_text_with_its_traceback(manager: ProcessManager, tmp_path: Path) -> None:
    manager.start("odd", child_targets.raise_value_error)
    failure = outcomes_of(manager, 1)["odd"]
    assert isinstance(failure, ChildFailure)
    assert failure.summary == "odd failed: ValueError: the number is odd"
    assert 'raise ValueError("the number is odd")' in failure.details
    assert failure.details.rstrip().endswith("ValueError: the number is odd")
    assert "ValueError: the number is odd" in (tmp_path / "odd.log").read_text()


@pytest.mark.parametrize(
    ("target", "failure"),
    [
        (child_targets.raise_run_failed, ChildFailure("child", "environment 7 failed", "only what matters")),
        (child_targets.lose_a_machine, ChildFailure("child", "its actor has ended", "", is_death=True)),
    ],
    ids=["explained", "death"],
)
def test_a_failure_in_a_childs_own_words_arrives_and_may_be_a_death(
    manager: ProcessManager, target: Callable[[], None], failure: ChildFailure
) -> None:
    manager.start("child", target)
    assert outcomes_of(manager, 1) == {"child": failure}


def test_what_a_child_has_printed_is_in_its_log_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    output, _ = run_program(f"start_printers({str(tmp_path)!r})").communicate()
    assert output.splitlines() == [
        "raise failed: ValueError: the wheels are off",
        "exit ended with exit code 3",
        "kill died: SIGKILL, possibly out of memory",
    ]
    logs = {ending: (tmp_path / f"{ending}.log").read_text() for ending in ("raise", "exit", "kill")}
    assert all("the wheels are loose\n" in log for log in logs.values())
    assert logs["raise"].index("without an end of its line") < logs["raise"].index("ValueError")


def test_signals_that_ask_for_an_end_are_the_runners_business(manager: ProcessManager) -> None:
    manager.start("busy", child_targets.report_for_ever, 0)
    reports_of(manager, 1)
    for number in STOPPING:
        os.kill(pid_of(manager, "busy"), number)
        reports_of(manager, 300)
    os.kill(pid_of(manager, "busy"), signal.SIGABRT)
    assert outcomes_of(manager, 1)["busy"].summary == "busy died: SIGABRT"


def test_a_process_that_a_role_has_forked_can_be_terminated(manager: ProcessManager) -> None:
    manager.start("parent", child_targets.terminate_a_fork)
    outcome = outcomes_of(manager, 1)["parent"]
    assert isinstance(outcome, ChildResult), outcome
    assert outcome.value == -signal.SIGTERM


def test_an_environment_may_start_processes(manager: ProcessManager) -> None:
    manager.start("a", child_targets.start_a_process)
    assert outcomes_of(manager, 1) == {"a": ChildResult("a", 7)}
    assert manager.end(timeout_s=30.0) == [], "it does not wait for what was forgotten"


def test_the_limit_on_open_files_is_raised_as_far_as_possible() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        allow_descriptors(150)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200, before[1])
        allow_descriptors(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, before[1])
        if before[1] != resource.RLIM_INFINITY:
            allow_descriptors(before[1] + 1)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_wait_without_children_takes_its_time_too(manager: ProcessManager, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    with monkeypatch.context() as patched:
        patched.setattr(processes.time, "sleep", slept.append)
        assert manager.wait(0.25) == []
    assert slept == [0.25]


def test_results_and_reports_arrive_and_a_name_can_be_used_again_after_a_reap(
    manager: ProcessManager,
) -> None:
    pids = []
    for _ in range(3):
        manager.start("worker", child_targets.report_and_return, 2)
        pids.append(pid_of(manager, "worker"))
        assert outcomes_of(manager, 1) == {"worker": ChildResult("worker", "done")}
        assert manager.running == [] and manager.reap("worker")
        assert not psutil.pid_exists(pids[-1])
    assert manager.end(timeout_s=20.0) == []
    assert sorted(report.worker_idx for report in manager.take_reports()) == [0, 0, 0, 1, 1, 1]


def test_a_child_that_hangs_is_killed_with_its_stacks_in_its_log(
    manager: ProcessManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STACK_S", 1.0)
    manager.start("rollout-3", child_targets.report_and_sleep)
    reports_of(manager, 1)
    manager.kill_hung("rollout-3", "slept too long")
    failure = outcomes_of(manager, 1)["rollout-3"]
    assert failure == ChildFailure("rollout-3", "rollout worker 3 slept too long", "", is_death=True)
    assert "report_and_sleep" in (tmp_path / "rollout-3.log").read_text()


def test_children_killed_while_they_report_never_block_the_runner(manager: ProcessManager) -> None:
    names = [f"child {number}" for number in range(4)]
    for number, name in enumerate(names):
        manager.start(name, child_targets.report_for_ever, number)
    manager.start("other", child_targets.sleep)
    heard: set[int] = set()
    while len(heard) < len(names):
        heard |= {report.worker_idx for report in reports_of(manager, 1)}
    for name in names:
        os.kill(pid_of(manager, name), signal.SIGKILL)
    outcomes = outcomes_of(manager, len(names))
    assert {outcome.summary for outcome in outcomes.values()} == {
        f"{name} died: SIGKILL, possibly out of memory" for name in names
    }
    assert manager.running == ["other"]
    manager.take_reports()
    manager.start("next", child_targets.report_and_return, 3)
    assert outcomes_of(manager, 1) == {"next": ChildResult("next", "done")}
    assert manager.reap("next") and manager.end(timeout_s=0.0) == ["other"]


def test_a_queue_that_is_locked_for_ever_is_abandoned_alone(
    manager: ProcessManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlocked = threading.Event()
    take = EventLoop.process_events

    def take_or_hang(loop: EventLoop) -> None:
        if loop.object_id.startswith("stuck"):
            unlocked.wait()
        take(loop)

    monkeypatch.setattr(EventLoop, "process_events", take_or_hang)
    manager.start("stuck", child_targets.report_and_return, 3)
    manager.start("free", child_targets.report_and_return, 4)
    assert len(outcomes_of(manager, 2)) == 2
    assert manager.end(timeout_s=20.0) == []
    assert len(manager.take_reports()) == 4
    unlocked.set()
    while any(thread.name.endswith("of stuck") for thread in threading.enumerate()):
        time.sleep(0.01)


def run_program(call: str) -> subprocess.Popen[str]:
    """A separate Python process that calls a function of `child_targets`."""
    program = f"import sys; sys.path.insert(0, {HELPERS!r}); import child_targets; child_targets.{call}"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_an_interpreter_that_exits_does_not_wait_for_children(tmp_path: Path) -> None:
    stdout, _ = run_program(f"exit_while_a_child_sleeps({str(tmp_path)!r})").communicate(timeout=200.0)
    child = int(stdout)
    wait_until(lambda: not psutil.pid_exists(child), 20.0, "the child is gone")
    assert not psutil.pid_exists(child)


def test_children_die_with_their_parent(tmp_path: Path) -> None:
    parent = run_program(f"parent_of_sleepers({str(tmp_path)!r}, 2)")
    while not (tmp_path / "pids").exists():
        assert parent.poll() is None
        time.sleep(0.01)
    children = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    assert len(children) == 2
    logs = [tmp_path / f"child {number}.log" for number in range(2)]
    wait_until(lambda: all(map(pids, logs)), 100.0, "both are at work, and know their parent")
    parent.kill()
    parent.communicate()
    gone, alive = psutil.wait_procs(children, timeout=30.0)
    assert (len(gone), alive) == (2, [])


@pytest.mark.skipif(host.START_METHOD != "forkserver", reason="unavoidable: no fork server")
def test_children_outlive_their_fork_server_and_others_can_be_started(tmp_path: Path) -> None:
    program = run_program(f"lose_the_fork_server({str(tmp_path)!r})")
    output, _ = program.communicate()
    assert output.splitlines() == [
        "busy lives",
        "next returned",
        "busy died, exit status unknown: the fork server had exited",
    ]
    assert program.returncode == 0
