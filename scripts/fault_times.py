"""Measures faults other than random kills: the time until they are reported, and until the run is over or works again.

    python scripts/fault_times.py                # about three minutes; prints one table

Each fault is caused several times, each time in a new run: `reset` raises in all workers, a segmentation fault in a
worker, SIGKILL of the runner, SIGKILL of the fork server and then of a worker.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from fault_injection import AT_WORK, Run, count
from watched_run import STARTED, await_condition, median_and_largest

from asyncrl.analysis.tables import table

LIMIT_S = 120.0
HELPERS = Path(__file__).resolve().parents[1] / "tests" / "helpers"
_RUN = ("--env=CartPole-v1", "--num_workers=2", "--num_envs_per_worker=4", "--train_for_env_steps=100000000")

Start = Callable[..., Run]
"""Starts a run with the given flags."""

Times = tuple[float | None, float | None]
"""Seconds from a fault until it was reported, and until it was over; None if that was not seen."""


def all_resets_raise(start: Start) -> Times:
    """Times from the start of the command, so the start-up is included."""
    started = time.monotonic()
    run = start("--env=faulty_envs:FailsToReset-v0", "--num_workers=2", "--num_envs_per_worker=4")
    return _times(run, started, "workers failed the same way", lambda: run.is_over and not run.processes())


def segmentation_fault(start: Start) -> Times:
    """Times until the successor of a worker works."""
    run = _at_work(start)
    log = run.logs / "rollout-1.log"
    faulty_at = _send(_pid(log), signal.SIGSEGV)
    return _times(run, faulty_at, "rollout worker 1 died: SIGSEGV", lambda: count(log, AT_WORK) > 1)


def runner_is_killed(start: Start) -> Times:
    """Times until no process is left; there is no process that could report it."""
    run = _at_work(start)
    return _times(run, _send(run.process.pid, signal.SIGKILL), None, lambda: not run.processes())


def fork_server_is_killed(start: Start) -> Times:
    """Kills a worker too, and times until its successor works."""
    run = _at_work(start)
    log = run.logs / "rollout-0.log"
    worker = _pid(log)
    _send(psutil.Process(worker).ppid(), signal.SIGKILL)
    time.sleep(0.2)
    faulty_at = _send(worker, signal.SIGKILL)
    return _times(run, faulty_at, "rollout worker 0 died", lambda: count(log, AT_WORK) > 1)


FAULTS: dict[str, Callable[[Start], Times]] = {
    "1: reset raises in all workers (from the start of the command)": all_resets_raise,
    "5: segmentation fault in a worker": segmentation_fault,
    "9: SIGKILL of the runner": runner_is_killed,
    "20: SIGKILL of the fork server, then of a worker": fork_server_is_killed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="repetitions of each fault")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
    rows = []
    for name, fault in FAULTS.items():
        noticed, over = zip(*(_measure(fault) for _ in range(options.times)), strict=True)
        rows.append([name, median_and_largest(noticed), median_and_largest(over)])
    print(table(["fault", "noticed after, median (largest) s", "over after, median (largest) s"], rows))


def _measure(fault: Callable[[Start], Times]) -> Times:
    with tempfile.TemporaryDirectory(prefix="asyncrl_faults_") as folder:
        runs: list[Run] = []

        def start(*flags: str) -> Run:
            runs.append(Run(flags, Path(folder)))
            return runs[-1]

        try:
            return fault(start)
        finally:
            for run in runs:
                run.end()


def _at_work(start: Start) -> Run:
    run = start(*_RUN)
    logs = [run.logs / f"rollout-{worker}.log" for worker in range(2)]
    await_condition(lambda: all(count(log, AT_WORK) for log in logs), LIMIT_S)
    return run


def _pid(log: Path) -> int:
    return int(STARTED.findall(log.read_text())[-1])


def _send(pid: int, number: int) -> float:
    at = time.monotonic()
    os.kill(pid, number)
    return at


def _times(run: Run, faulty_at: float, said: str | None, is_over: Callable[[], bool]) -> Times:
    over_s = time.monotonic() - faulty_at if await_condition(is_over, LIMIT_S) else None
    run.end()
    if said is None:
        return None, over_s
    noticed_at = next((at for at, line in run.lines if at >= faulty_at and said in line), None)
    return None if noticed_at is None else noticed_at - faulty_at, over_s


if __name__ == "__main__":
    main()
