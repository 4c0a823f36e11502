"""What environments start: it ends with the process of its environment, however that ends, and with the runner."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command import ENDED_S, HELPERS, PROBE, Command, wait_until
from killing import pids

HOGWILD = ("--backend=hogwild", "--algo=a2c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "simulators"
    folder.mkdir()
    return folder


def train(start: Callable[..., Command], folder: Path, *flags: str, **env_kwargs: bool) -> Command:
    kwargs = json.dumps({"folder": str(folder), **env_kwargs})
    return start("asyncrl.train", "--env=faulty_envs:StartsSimulator-v0", f"--env_kwargs={kwargs}", *PROBE, *flags)


def living(folder: Path, worker: int | None = None) -> list[int]:
    """Simulators that live, of all processes or of one."""
    found = []
    for path in folder.glob("*.simulator"):
        with contextlib.suppress(psutil.Error, ValueError):
            owner, simulator = map(int, path.read_text().split())
            if worker in (None, owner) and psutil.Process(simulator).status() != psutil.STATUS_ZOMBIE:
                found.append(simulator)
    return found


@pytest.mark.parametrize(
    ("flags", "hangs"),
    [((), False), (HOGWILD, False), (("--env_step_timeout=1",), True)],
    ids=["killed", "killed hogwild", "hangs"],
)
def test_simulators_end_with_their_worker_before_its_successor_starts(
    start: Callable[..., Command], folder: Path, flags: tuple[str, ...], hangs: bool
) -> None:
    training = train(start, folder, *flags, hangs=hangs)
    logs = training.folder / "logs"

    def workers() -> list[int]:
        return [pid for path in logs.glob("rollout-*.log") for pid in pids(path)]

    training.wait_until(lambda: len(workers()) >= 2 and len(living(folder)) >= 8, "both workers simulate")
    if not hangs:
        os.kill(workers()[0], signal.SIGKILL)
    training.wait_until(lambda: len(workers()) == 3, "a worker was replaced")
    dead = [pid for pid in workers() if not psutil.pid_exists(pid)]
    assert dead
    assert [living(folder, pid) for pid in dead] == [[]]
    training.process.terminate()
    code, _, stderr = training.finish()
    assert code == 143, stderr
    assert living(folder) == []


@pytest.mark.parametrize("forked", [False, True], ids=["programs", "forks"])
def test_simulators_end_if_the_runner_and_its_workers_are_killed_together(
    start: Callable[..., Command], folder: Path, forked: bool
) -> None:
    training = train(start, folder, "--eval_every_env_steps=1", forked=forked)
    training.wait_until_trained()
    training.wait_until(lambda: len(living(folder)) >= 9, "workers and evaluation simulate")
    simulators = living(folder)
    for process in training.session():
        if process.pid not in simulators:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with its parent
                process.kill()
    wait_until(lambda: not living(folder), ENDED_S, "all simulators are gone")
    assert living(folder) == []


def test_simulators_of_an_evaluation_end_with_it(start: Callable[..., Command], folder: Path) -> None:
    training = train(start, folder, "--eval_every_env_steps=1")
    log = training.folder / "logs" / "evaluation.log"
    training.wait_until(lambda: log.exists() and len(pids(log)) > 0, "the evaluation has begun")
    evaluation = pids(log)[0]
    training.wait_until(lambda: bool(living(folder, evaluation)), "the evaluation simulates")
    os.kill(evaluation, signal.SIGKILL)
    wait_until(lambda: not living(folder, evaluation), ENDED_S, "its simulators are gone")
    training.process.terminate()
    assert training.finish()[0] == 143


SUSPENDED = """
import os, signal, subprocess, sys
from asyncrl.processes.signals import suspended_together
os.setpgid(0, 0)
child = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.setpgid(0, 0))
with suspended_together(lambda: [child.pid]):
    print(child.pid, flush=True)
    sys.stdin.readline()
child.kill()
"""


def test_ctrl_z_stops_the_groups_of_children_and_the_shell_continues_them() -> None:
    # Its parent is in the same session and another group, as a shell is: otherwise the kernel ignores Ctrl-Z.
    process = subprocess.Popen(
        [sys.executable, "-c", SUSPENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child, runner = psutil.Process(int(process.stdout.readline())), psutil.Process(process.pid)
    os.killpg(process.pid, signal.SIGTSTP)
    stopped = psutil.STATUS_STOPPED
    wait_until(lambda: runner.status() == child.status() == stopped, ENDED_S, "both are stopped")
    os.killpg(process.pid, signal.SIGCONT)
    wait_until(lambda: stopped not in (runner.status(), child.status()), ENDED_S, "both are continued")
    process.communicate("\n")
    assert process.returncode == 0


READS = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import child_targets
if __name__ == "__main__":
    print("answer", child_targets.result_of_reading_the_terminal(sys.argv[2]))
"""


def test_an_environment_may_read_from_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "reads.py"
    script.write_text(READS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(script), str(HELPERS), str(tmp_path)])
    os.write(terminal, b"continue\n")
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1024):
            shown += part
    os.waitpid(pid, 0)
    os.close(terminal)
    assert b"answer continue" in shown, shown.decode()
