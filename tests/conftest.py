"""What tests with processes leave behind is counted and cleared here, and which tests may be skipped."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import psutil
import pytest
import quick_probe
import torch
import unavoidable

from asyncrl.envs import probe
from asyncrl.envs.probe_child import _Examination
from asyncrl.processes.children import process_context, start_loading_modules
from asyncrl.processes.seeding import restoring_global_generators

# Small products gain nothing from a second thread, and wait for it where another program has its core.
torch.set_num_threads(1)

# Shells start what is to run in the background with Ctrl-C ignored, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SETTLE_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")
# Memory of faster-fifo queues comes from multiprocessing's heap, which keeps blocks that it has mapped, each with the
# descriptor of a deleted file, for the next queue.
_HEAP_BLOCK = "/pym-"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what CI runs with."""
    text = "fail if a test is skipped for another reason than what this machine or Python cannot have"
    parser.addoption("--only-unavoidable-skips", action="store_true", help=text)
    text = "a file for the tests that were skipped for want of a package, for `pytest @FILE` when it is installed"
    parser.addoption("--skipped-to", type=Path, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Gives all processes of this session one folder for temporary files, which is cleared away; pytest keeps its own.

    It holds what processes that are killed leave, such as the sockets of fork servers, and Matplotlib's cache: EnvPool
    otherwise chooses a folder with a fixed name, which another user of the machine may own.
    """
    if hasattr(config, "workerinput"):
        return  # a process of pytest-xdist: it has the folder of the one that started it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="asyncrl-tests-")
    # Otherwise each process that a test starts would compile every module of asyncrl again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["MPLCONFIGDIR"] = os.path.join(folder, "matplotlib")
    # At the very end: multiprocessing removes its own folder in there with priority -100.
    util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)


def pytest_collection_finish() -> None:
    """Excludes all modules that are loaded now from collections of garbage, which take half a second with them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Says which tests were skipped and could have run; writes their list, or fails the session, if asked to."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    skipped = [(report.nodeid, report.longrepr[2]) for report in reporter.stats.get("skipped", ())]
    reasons = {nodeid: reason.removeprefix("Skipped: ") for nodeid, reason in skipped}
    avoidable = {nodeid: reason for nodeid, reason in reasons.items() if not reason.startswith(unavoidable.PREFIX)}
    if (path := session.config.getoption("--skipped-to")) is not None:
        path.write_text("".join(f"{nodeid}\n" for nodeid in avoidable), encoding="utf-8")
    if not avoidable:
        return
    if session.config.getoption("--only-unavoidable-skips"):
        text = "skipped, but not for a reason that is known as unavoidable"
        reporter.write_line(f"\n{text}: {sorted(set(avoidable.values()))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    else:
        text = "skipped because packages are missing; pip install -e '.[mujoco,dev-all]' runs them, too"
        reporter.write_line(f"\n{len(avoidable)} tests or files {text}")


@pytest.fixture(scope="session", autouse=True)
def hangups_are_not_ignored() -> Iterator[None]:
    """nohup starts all of this with SIGHUP ignored, and children inherit that, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def context() -> BaseContext:
    """The start method of all children, its server running."""
    context = process_context()
    start_loading_modules(context)
    return context


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fails the test if it leaves a child process, an open descriptor, or an entry in /dev/shm."""
    with nothing_is_left():
        yield


@pytest.fixture(scope="module")
def module_leaves_nothing() -> Iterator[None]:
    """Fails if the tests of a module together leave something, where they share what takes long to start."""
    with nothing_is_left():
        yield


@contextlib.contextmanager
def nothing_is_left() -> Iterator[None]:
    """Fails if what is done meanwhile leaves a child process, an open descriptor, or an entry in /dev/shm.

    Fork server and resource tracker are started before, with their pipes, so that none of theirs is new.
    """
    start_loading_modules(process_context())
    resource_tracker.ensure_running()
    entries_before = _shared_memory_entries()
    children_before = _children()
    descriptors_before = _descriptors()
    yield
    assert _settled(lambda: _children() - children_before) == set(), "child processes are left"
    assert _settled(lambda: _new_descriptors(descriptors_before)) == set(), "descriptors are left"
    assert _settled(lambda: _new_entries(entries_before)) == set(), "entries in /dev/shm are left"


def _settled(left: Callable[[], set[str]]) -> set[str]:
    """What remains after a while: a process that was killed is gone a moment later, and a collection closes what only
    cycles hold. It is made only where something is left, because it takes a second when many modules are loaded.
    """
    deadline = time.monotonic() + _SETTLE_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.02)
        if left():
            gc.collect()
    return found


def _children() -> set[str]:
    servers = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    children = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.pid not in servers and child.status() != psutil.STATUS_ZOMBIE:
                children.add(f"{child.pid} {' '.join(child.cmdline())}")
        except psutil.NoSuchProcess:
            continue
    return children


def _descriptors() -> dict[int, str]:
    found = {}
    folder = Path("/proc/self/fd")
    for name in os.listdir(folder if folder.is_dir() else "/dev/fd"):
        try:
            target = os.readlink(folder / name) if folder.is_dir() else "open"
        except FileNotFoundError:
            continue
        if _HEAP_BLOCK not in target:
            found[int(name)] = target
    return found


def _new_descriptors(before: dict[int, str]) -> set[str]:
    return {f"{number} -> {target}" for number, target in _descriptors().items() if before.get(number) != target}


def _shared_memory_entries() -> set[str]:
    return set(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else set()


def _new_entries(before: set[str]) -> set[str]:
    """New entries that no other program of this machine has in use."""
    new = _shared_memory_entries() - before
    if new:
        ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        for pid in set(psutil.pids()) - ours:
            new -= {name for name in new if f"{_SHARED_MEMORY}/{name}" in _memory_maps(pid)}
    return new


def _memory_maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="session", autouse=True)
def quick_probes() -> Iterator[None]:
    """Environments are examined in forks of this process; commands that are not started quickly examine as usual."""
    with mock.patch.object(probe, "subprocess", quick_probe.SUBPROCESS):
        yield


@pytest.fixture
def fresh_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are examined in a new interpreter, as for a user."""
    monkeypatch.setattr(probe, "subprocess", subprocess)


@pytest.fixture
def probes_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examines environments in this process: for tests that are not about the process that a run starts for it."""
    registered = dict(gymnasium.registry)

    def examine(request: Mapping[str, Any], timeout_s: float, on_slow: object) -> tuple[int, list[Any], str]:
        asked = {name: value for name, value in request.items() if name not in ("search_path", "stacks_at")}
        with restoring_global_generators():
            answers = list(_Examination(**asked).answers())
        return 0, json.loads(json.dumps(answers)), ""

    monkeypatch.setattr(probe, "_run_child", examine)
    yield
    gymnasium.registry.update(registered)  # a test may have registered another environment by the same name


@pytest.fixture
def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
