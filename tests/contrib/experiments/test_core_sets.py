"""Commands in core sets: how many run at once, on which cores, and that none outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from command import wait_until

from asyncrl.contrib.experiments.core_sets import Command, CoreSets
from asyncrl.contrib.experiments.ownership import SILENCE_S, Owner

# Writes its cores and its process id into a file, and then waits for Ctrl-C, which it answers or not.
WAITING = """
import json, os, signal, subprocess, sys, time
path, answers, starts = sys.argv[1:]
if answers == "no":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) if starts == "child" else None
try:
    with open(path + ".part", "w") as file:
        json.dump([sorted(os.sched_getaffinity(0)), os.getpid(), child and child.pid, __name__], file)
    os.replace(path + ".part", path)
    time.sleep(100)
except KeyboardInterrupt:
    print("stopped well")
    sys.exit(7)
"""
OWNER = """
import sys
import threading
from pathlib import Path
from asyncrl.contrib.experiments.core_sets import Command, CoreSets
folder = Path(sys.argv[1])
core_sets = CoreSets(2)
for name in ("a", "b"):
    core_sets.start(Command(name, "waiting", (str(folder / name), "no", "child"), folder / f"{name}.log"))
core_sets.wait(100)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "waiting.py").write_text(WAITING)
    root = Path(__file__).resolve().parents[3]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    return tmp_path


def read(path: Path) -> list:
    import json

    wait_until(path.exists, 20.0, f"{path.name} was written")
    return json.loads(path.read_text())


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def waiting(folder: Path, name: str, answers: str = "yes", threads: int = 1) -> Command:
    return Command(name, "waiting", (str(folder / name), answers, "alone"), folder / f"{name}.log", threads)


def test_a_command_that_is_stopped_ends_by_itself_and_one_that_does_not_is_killed(folder, monkeypatch) -> None:
    with CoreSets(2) as core_sets:
        for name, answers in (("good", "yes"), ("deaf", "no")):
            core_sets.start(waiting(folder, name, answers))
        assert not core_sets.has_room(1)
        processes = {name: read(folder / name) for name in ("good", "deaf")}
        assert [process[3] for process in processes.values()] == ["__main__", "__main__"]
        core_sets.stop("good")
        monkeypatch.setattr("asyncrl.contrib.experiments.core_sets._GRACE_S", 1.0)
        core_sets.stop("deaf")
        ended = {}
        while core_sets.names:
            ended.update({each.name: each.exit_code for each in core_sets.wait(20.0)})
        assert ended == {"good": 7, "deaf": -signal.SIGKILL}
    assert (folder / "good.log").read_text() == "stopped well\n"
    assert not any(psutil.pid_exists(process[1]) for process in processes.values())


def test_core_sets_share_out_the_cores(folder) -> None:
    usable = sorted(os.sched_getaffinity(0))
    with CoreSets(2) as core_sets:
        share = core_sets.cores_per_set
        for name in ("a", "b"):
            core_sets.start(waiting(folder, name))
        second = usable[share : 2 * share] or usable
        assert [read(folder / name)[0] for name in ("a", "b")] == [usable[:share], second]


def test_without_a_number_of_core_sets_each_thread_has_a_core(monkeypatch) -> None:
    monkeypatch.setattr("asyncrl.contrib.experiments.core_sets.available_cores", lambda: 4)

    class Running:
        threads = 3

    core_sets = CoreSets()
    assert core_sets.has_room(9), "one command always may start"
    core_sets._running["a"] = Running()
    assert core_sets.has_room(1) and not core_sets.has_room(2)
    assert (core_sets.cores_per_set, CoreSets(2).cores_per_set, CoreSets(8).cores_per_set) == (4, 2, 1)


def test_a_killed_owner_leaves_no_process(folder) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], start_new_session=True)
    pids = [pid for name in ("a", "b") for pid in read(folder / name)[1:3]]
    assert all(psutil.pid_exists(pid) for pid in pids)
    owner.kill()
    owner.wait()

    def are_gone() -> bool:
        return all(map(is_gone, pids))

    wait_until(are_gone, 10.0, "commands that ignore Ctrl-C, and their children, are gone")


def test_work_has_one_owner_until_that_one_ends(tmp_path) -> None:
    work = tmp_path / "work"
    with Owner(tmp_path / "owners") as first, Owner(tmp_path / "owners") as second:
        assert first.claim(work)
        assert not second.claim(work)
        assert second.is_alive(first.name)
        first.close()
        assert not second.is_alive(first.name)
        assert second.claim(work)
        first._file = os.open(os.devnull, os.O_RDONLY)  # for the second close


def test_one_of_two_that_find_a_dead_owner_takes_its_work(tmp_path) -> None:
    work = tmp_path / "work"
    work.write_text("nobody_0123abcd")
    with Owner(tmp_path / "owners") as slow, Owner(tmp_path / "owners") as quick:
        ask = slow.is_alive

        def is_alive(name: str) -> bool:
            found = ask(name)
            other = threading.Thread(target=lambda: taken.append(quick.claim(work)), daemon=True)
            other.start()
            other.join(0.2)  # time in which the other one could replace the dead owner, too
            others.append(other)
            return found

        taken: list[bool] = []
        others: list[threading.Thread] = []
        slow.is_alive = is_alive
        assert slow.claim(work)
        for other in others:
            other.join(10.0)
        assert taken == [False]


def test_an_owner_of_another_machine_is_dead_when_it_has_been_silent(tmp_path) -> None:
    other = tmp_path / "elsewhere_0123abcd"
    other.touch()
    with Owner(tmp_path) as owner:
        assert owner.is_alive(other.name)
        long_ago = other.stat().st_mtime - SILENCE_S - 1.0
        os.utime(other, (long_ago, long_ago))
        assert not owner.is_alive(other.name)
