"""What children of tests do: a child imports its target by name, so it stands in a module that both can import."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from asyncrl.observers.reports import EpisodeRecord, RolloutReport
from asyncrl.processes.children import ChildFailure, ChildResult, ProcessManager, RunFailed, process_context
from asyncrl.processes.reporting import ReportSender


def leave_a_thread(reports: ReportSender) -> str:
    """Starts a thread that does not end, as clients of simulators do."""
    threading.Thread(target=time.sleep, args=(600.0,)).start()
    return "done"


def return_pid(reports: ReportSender) -> int:
    return os.getpid()


def report_and_return(count: int, reports: ReportSender) -> str:
    for number in range(count):
        reports.send(_report(number))
    return "done"


def raise_value_error(reports: ReportSender) -> None:
    raise ValueError("the number is odd")


def print_and_end(ending: str, reports: ReportSender) -> None:
    print("the wheels are loose")
    if ending == "exit":
        os._exit(3)
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print("without an end of its line", end="")
    raise ValueError("the wheels are off")


def raise_run_failed(reports: ReportSender) -> None:
    raise RunFailed("environment 7 failed", "only what matters")


def lose_a_machine(reports: ReportSender) -> None:
    raise RunFailed("its actor has ended", is_death=True)


def sleep(reports: ReportSender) -> None:
    time.sleep(300.0)


def report_and_sleep(reports: ReportSender) -> None:
    reports.send(_report(0))
    time.sleep(300.0)


def report_for_ever(number: int, reports: ReportSender) -> None:
    """Reports without a pause, so that a kill hits it in the middle of emitting."""
    while True:
        reports.send(_report(number))


def parent_of_sleepers(folder: str, count: int) -> None:
    """Starts children, writes their process ids, and sleeps; the main program of a process."""
    manager = _light_manager(folder)
    for number in range(count):
        manager.start(f"child {number}", sleep)
    pids = " ".join(str(child.pid) for child in multiprocessing.active_children())
    Path(folder, "pids.tmp").write_text(pids)
    Path(folder, "pids.tmp").rename(Path(folder, "pids"))
    time.sleep(300.0)


def lose_the_fork_server(folder: str) -> None:
    """Kills the fork server under a child, starts another, and then kills the child; the main program of a process."""
    manager = _light_manager(folder)
    manager.start("busy", report_for_ever, 0)
    _await_report(manager)
    (child,) = multiprocessing.active_children()
    process = psutil.Process(child.pid)
    psutil.Process(process.ppid()).kill()
    time.sleep(0.2)
    manager.take_reports()
    _await_report(manager)
    print("busy lives" if manager.wait(0.5) == [] else "busy is lost", flush=True)
    manager.start("next", return_pid)
    outcome = _outcome_of(manager, "next")
    print("next returned" if isinstance(outcome, ChildResult) else outcome, flush=True)
    process.kill()
    outcome = _outcome_of(manager, "busy")
    print(outcome.summary if isinstance(outcome, ChildFailure) else outcome, flush=True)
    manager.end(timeout_s=0.0)


def start_printers(folder: str) -> None:
    """Starts children that print and fail, and prints what became of them; the main program of a process."""
    manager = _light_manager(folder)
    for ending in ("raise", "exit", "kill"):
        manager.start(ending, print_and_end, ending)
        outcome = _outcome_of(manager, ending)
        print(outcome.summary if isinstance(outcome, ChildFailure) else outcome, flush=True)
    manager.end(timeout_s=20.0)


def _outcome_of(manager: ProcessManager, name: str) -> ChildResult | ChildFailure:
    while name in manager.running:
        for outcome in manager.wait(1.0):
            if outcome.child == name:
                return outcome
    raise AssertionError(f"{name} has ended before")


def _await_report(manager: ProcessManager) -> None:
    while not manager.take_reports():
        time.sleep(0.01)


def _light_manager(folder: str) -> ProcessManager:
    """Its fork server loads no heavy modules, which these children do not need."""
    context = process_context()
    context.set_forkserver_preload([])
    return ProcessManager(context, lambda name: Path(folder, f"{name}.log"))


def _report(number: int) -> Any:
    return RolloutReport(number, 1.0, 10, tuple(EpisodeRecord(1.0, 5, {"x": 2.0}) for _ in range(20)))


def die_as_evaluation(setup: Any, build: Any, reports: ReportSender) -> None:
    """Stands for the evaluation process, and is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def exit_while_a_child_sleeps(folder: str) -> None:
    """Starts a child that sleeps, writes its process id, and returns, as an owner does that forgets its manager."""
    manager = _light_manager(folder)
    manager.start("sleeper", sleep)
    print(manager._running["sleeper"].pid, flush=True)
    _forgotten.append(manager)


_forgotten: list[ProcessManager] = []


def terminate_a_fork(_: ReportSender) -> int:
    """Forks a process that sleeps and terminates it, as environments of several processes do; returns how it ended."""
    is_alive, tell = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(tell, b".")
        time.sleep(30.0)
        os._exit(0)
    os.read(is_alive, 1)
    os.kill(forked, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


def start_a_process(reports: ReportSender) -> int:
    """Does what an environment may do: it starts a process and waits for it."""
    is_alive, tell = os.pipe()

    def sleep_on() -> None:
        os.write(tell, b".")
        time.sleep(600.0)

    forgotten = multiprocessing.get_context("fork").Process(target=sleep_on)
    forgotten.start()
    os.read(is_alive, 1)  # before that a signal would be lost
    child = multiprocessing.get_context("fork").Process(target=os._exit, args=(7,))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def read_the_terminal(reports: ReportSender) -> str:
    """Does what a debugger in an environment may do."""
    with open("/dev/tty") as terminal:
        return terminal.readline().strip()


def result_of_reading_the_terminal(folder: str) -> Any:
    """What a child has read from the terminal."""
    manager = _light_manager(folder)
    manager.start("reader", read_the_terminal)
    outcome = _outcome_of(manager, "reader")
    manager.end(1.0)
    return outcome.value if isinstance(outcome, ChildResult) else outcome
