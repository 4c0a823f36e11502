"""Forks the child process that examines an environment before a run, instead of starting an interpreter.

A new interpreter would load NumPy, Gymnasium, asyncrl and often PyTorch again: most of what a short run costs. All else
is as in `asyncrl.envs.probe`: the child's session, environment, streams, descriptors and end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_POLL_S = 0.005


class ForkedProbe:
    """The part of `subprocess.Popen` that `asyncrl.envs.probe` uses."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: Any,
        stdout: Any,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        **_: Any,
    ) -> None:
        """Forks the child."""
        self.returncode: int | None = None
        streams = stdin.fileno(), stdout.fileno()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks of processes with threads
            self.pid = os.fork()
        if self.pid == 0:
            try:
                _examine(command[2:], streams, env, pass_fds)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("probe", timeout or 0.0)
            else:
                time.sleep(_POLL_S)
        return self.returncode

    def kill(self) -> None:
        """Sends SIGKILL, if it runs."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


SUBPROCESS = types.SimpleNamespace(**{**vars(subprocess), "Popen": ForkedProbe})
"""Takes the place of `asyncrl.envs.probe.subprocess`."""


def run_as_main(module: str) -> int:
    """Runs a module as `python -m` does, in this process; returns its exit code."""
    code: object = 0
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*found in sys.modules", category=RuntimeWarning)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else 0 if code is None else 1


def _examine(
    module_and_flags: Sequence[str], streams: tuple[int, int], env: Mapping[str, str], passed: Sequence[int]
) -> NoReturn:
    """The child: becomes what an interpreter is that was started with `-m module`."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for given, own in ((streams[0], 0), (streams[1], 1), (streams[1], 2)):
        os.dup2(given, own)
    kept = {0, 1, 2, *passed}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    os.environ.clear()
    os.environ.update(env)
    importlib.invalidate_caches()
    module, *flags = module_and_flags
    sys.argv = [module, *flags]
    code = run_as_main(module)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)
