"""Starts `python -m MODULE` from a process that has loaded its modules already, so that loading costs no time.

A command and its fork server would each load PyTorch and Gymnasium: most of what a short run costs. Here the command is
forked from this process's fork server. It forks its own fork server, and the check of the environment, from itself
instead of starting an interpreter. Everything else is as in a command that a user starts: its session, environment,
arguments, streams, signals and end.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, NoReturn

import quick_probe

from asyncrl.envs import probe
from asyncrl.processes.children import process_context, start_loading_modules

MODULES = ("asyncrl.train", "asyncrl.evaluate")
"""What can be started so."""


class QuickProcess:
    """A command, with the part of `subprocess.Popen` that tests use; its streams are pipes if none are given."""

    def __init__(
        self,
        module: str,
        flags: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        stdout_and_stderr: tuple[int, int] | None = None,
    ) -> None:
        """Starts it in its own session."""
        context = process_context()
        start_loading_modules(context)
        streams = [] if stdout_and_stderr else [os.pipe() for _ in range(2)]
        written = stdout_and_stderr or [write_end for _, write_end in streams]
        target = (module, list(flags), str(cwd), dict(environment), *(_Passed(stream) for stream in written))
        self._process = context.Process(target=_run_module, args=target)  # type: ignore[attr-defined]
        self._process.start()
        for _, write_end in streams:
            os.close(write_end)
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.returncode: int | None = None
        self._readers = [_Reader(os.fdopen(read_end, "r", encoding="utf-8")) for read_end, _ in streams]

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def communicate(self) -> tuple[str, str]:
        """Waits for its end; returns what it has written to standard output and standard error."""
        self.wait()
        first, second = (reader.result() for reader in self._readers)
        return first, second

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._process.join(timeout)
            self.returncode = self._process.exitcode
            if self.returncode is not None:
                self._process.close()
        return self.returncode


class _Reader(threading.Thread):
    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream, self._text = stream, ""
        self.start()

    def run(self) -> None:
        with self._stream:
            self._text = self._stream.read()

    def result(self) -> str:
        self.join()
        return self._text


class _Passed:
    """A descriptor on its way to a child."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (DupFd(self._descriptor),)


def _receive(passed: Any) -> int:
    return int(passed.detach())


def _run_module(
    module: str, flags: list[str], cwd: str, environment: dict[str, str], stdout: int, stderr: int
) -> NoReturn:
    """The child: becomes what an interpreter is that was started with `-m module`."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for given, own in ((stdout, 1), (stderr, 2)):
        os.dup2(given, own)
        os.close(given)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.argv = [module, *flags]
    search_path = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [cwd, *search_path, *(entry for entry in sys.path if entry not in ("", cwd))]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _be_the_first_process()
    probe.subprocess = quick_probe.SUBPROCESS  # type: ignore[assignment]
    code = quick_probe.run_as_main(module)
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    sys.exit(code)


def _be_the_first_process() -> None:
    """Makes multiprocessing forget that this process is a child, and start fork servers by forking."""
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    multiprocessing.process.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    server = forkserver.ForkServer()
    forkserver._forkserver = server  # type: ignore[attr-defined]
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        setattr(forkserver, name, getattr(server, name))
    # libuv, with which the store of ranks works, closes descriptors at each fork of a fork.
    if "RANK" not in os.environ:
        util.spawnv_passfds = _fork_interpreter  # type: ignore[assignment]


def _fork_interpreter(path: Any, arguments: Sequence[Any], passed: Sequence[int]) -> int:
    """Forks what `python -c PROGRAM` would be; other programs, such as the resource tracker, are started for real."""
    if arguments[-2] != "-c" or "forkserver" not in arguments[-1]:
        return _spawnv_passfds(path, arguments, passed)
    pid = os.fork()
    if pid > 0:
        return pid
    util.spawnv_passfds = _spawnv_passfds  # its children are no part of this
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    kept = {0, 1, 2, *passed}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    try:
        exec(arguments[-1], {"__name__": "__main__"})
    finally:
        os._exit(0)


_spawnv_passfds = util.spawnv_passfds
