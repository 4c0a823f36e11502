"""Child processes: how they start, how they end, and how what goes wrong in them reaches the runner as text.

Children start from a fork server that has the heavy modules loaded already. They ignore Ctrl-C (the runner decides),
die with the runner, and write a log file of their own. They outlive the fork server: if that dies, multiprocessing can
no longer tell how they fare, so a child is watched through a descriptor of its process (pidfd) where there are any.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from asyncrl.runtime.lifeline import end_with

_EXIT_S, _STACK_S, _KILLED_S = 2.0, 0.5, 5.0
_UNKNOWN_EXIT = 255  # what multiprocessing gives for a child whose fork server is gone
EXIT_FAILED_TOO_OFTEN = 3  # processes or environments, as often as the settings allow
_EXIT_OF_IMPORTED_MAIN = 97
_NO_MAIN_GUARD = (
    "The script starts training when it is imported, and each process of the run imports it. Put the call under "
    'if __name__ == "__main__":'
)
_PRELOADED = ("torch", "gymnasium", "asyncrl.run.runner")

log = logging.getLogger(__name__)


class RunFailed(Exception):
    """A run cannot go on. `summary` is one line for the user; `details` a traceback, empty where it says no more.

    Attributes:
        exit_code: what the command is to return.
        is_final: starting the process again would not help.
    """

    def __init__(self, summary: str, details: str = "", exit_code: int = 1, is_final: bool = False) -> None:
        super().__init__(summary)
        self.summary = summary
        self.details = details
        self.exit_code = exit_code
        self.is_final = is_final


class LearnerDied(RunFailed):
    """The learner's process ended without a word: the run can go on from its last checkpoint only."""


@dataclass(frozen=True)
class ChildFailure:
    """What went wrong in a child: one line that says it, and the traceback as text.

    `exit_code` and `is_final` are those of a `RunFailed` which the child raised. `is_death`: it ended without a word.
    """

    child: str
    summary: str
    details: str
    exit_code: int = 1
    is_final: bool = False
    is_death: bool = False


def process_context(first_modules: Sequence[str] = ()) -> BaseContext:
    """The start method of all children, with its server's modules set; nothing is started yet.

    NumPy's BLAS, which workers act with, would otherwise start a thread for every core in every worker.

    Args:
        first_modules: modules that the server loads before all others.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*first_modules, *_PRELOADED])
    return context


def refuse_to_run_while_imported() -> None:
    """Ends a child process that runs the user's script again because the script has no main guard.

    A child imports the main module before it looks for its target. The runner explains the exit code.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_EXIT_OF_IMPORTED_MAIN)


def start_loading_modules(context: BaseContext) -> None:
    """Starts the fork server, which loads its modules meanwhile, also in place of one that has died."""
    if context.get_start_method() != "forkserver":
        return
    before = _fork_server_pid()
    resource_tracker.ensure_running()  # after its own start it would let Ctrl-C through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the server ignores it only once all is loaded
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if before is not None and _fork_server_pid() != before:
        log.warning("the fork server died and was restarted; processes that it started continue")


def _fork_server_pid() -> int | None:
    pid: int | None = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    return pid


@dataclass(frozen=True)
class ChildResult:
    """What a child's target returned."""

    child: str
    value: Any


class ChildProcess:
    """One child: its process, and the pipe through which it says what came of it.

    Attributes:
        has_ended: whether `end` has seen the process gone.
    """

    def __init__(
        self, context: BaseContext, name: str, log_path: Path, target: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Starts `target(*args)` in a new process."""
        self.name = name
        self.has_ended = False
        self._killed_for: str | None = None
        self.messages: Connection
        self.messages, child_end = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_child_main, args=(name, log_path, child_end, target, args), name=name, daemon=True
        )
        try:
            self.process.start()
        except (OSError, EOFError) as error:
            self.messages.close()
            raise RunFailed(f"{title(name)} could not be started: {type(error).__name__}: {error}") from error
        finally:
            child_end.close()
        self._fork_server = _fork_server_pid()
        self._pidfd = _open_pidfd(self.process)

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes ready when the process ends."""
        return self.process.sentinel if self._pidfd is None else self._pidfd

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def take_outcome(self) -> ChildResult | ChildFailure | None:
        """What came of the child, None while it runs and has said nothing.

        A process that ended without a word gets a failure that says how it ended.
        """
        ended = self._wait_for_end(0.0)
        with contextlib.suppress(EOFError, OSError):
            if self.messages.poll():
                outcome: ChildResult | ChildFailure = self.messages.recv()
                return outcome
        if not ended:
            return None
        self.process.join(_EXIT_S)  # the fork server passes the exit code on a moment later
        if self.process.exitcode == _EXIT_OF_IMPORTED_MAIN:
            return ChildFailure(self.name, _NO_MAIN_GUARD, "", is_final=True)
        reason = self._killed_for or self._describe_exit()
        return ChildFailure(self.name, f"{title(self.name)} {reason}", "", is_death=True)

    def kill(self, reason: str) -> None:
        """Kills a process that hangs, after it has written its stacks into its log.

        Args:
            reason: what is said of it instead of the signal that it died of, as "made no step".
        """
        self._killed_for = reason
        if hasattr(signal, "SIGUSR1"):
            self._send(signal.SIGUSR1)
            self._wait_for_end(_STACK_S)
        self._send(signal.SIGKILL)

    def end(self, timeout_s: float) -> bool:
        """Waits for the process to end, and kills it after the timeout.

        Returns:
            Whether it ended by itself.
        """
        ended = self._wait_for_end(timeout_s)
        if not ended or self._is_orphan:
            self._send(signal.SIGKILL)
        self.has_ended = self._wait_for_end(_KILLED_S)
        self.process.join(_EXIT_S)
        self.messages.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return ended

    @property
    def _is_orphan(self) -> bool:
        """Whether multiprocessing takes it for dead because the fork server, which reports its exit, has ended."""
        return self.process.exitcode == _UNKNOWN_EXIT and self._fork_server != _fork_server_pid()

    def _describe_exit(self) -> str:
        if self._is_orphan:
            return "died, exit status unknown: the fork server had exited"
        return describe_exit(self.process.exitcode)

    def _wait_for_end(self, timeout_s: float) -> bool:
        return bool(connection.wait([self.sentinel], timeout_s))

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)


def _open_pidfd(process: BaseProcess) -> int | None:
    """A descriptor of the process that tells of its end whatever its parent is; None where the system has none."""
    assert process.pid is not None
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


def title(name: str) -> str:
    """A child's name in words: `rollout worker 2` for `rollout-2`."""
    role, _, number = name.partition("-")
    return f"{role} worker {number}" if number.isdigit() else name


def describe_exit(exit_code: int | None) -> str:
    """An exit code in words: which signal, or which number."""
    if exit_code is not None and exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        hint = ", possibly out of memory" if name == "SIGKILL" else ""
        return f"died: {name}{hint}"
    return f"ended with exit code {exit_code}"


def _child_main(
    name: str, log_path: Path, messages: Connection, target: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for what the environment may start
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (runner := multiprocessing.parent_process()) is not None:
        end_with(runner.sentinel)
    log_file = _open_log(name, log_path)
    log.info("started as process %d", os.getpid())
    try:
        value = target(*args)
    except BaseException as error:
        log.exception("failed")
        explained = error if isinstance(error, RunFailed) else explain(name, error)
        with contextlib.suppress(OSError):
            messages.send(
                ChildFailure(name, explained.summary, explained.details, explained.exit_code, explained.is_final)
            )
        log_file.flush()
        os._exit(1)
    log.info("done")
    with contextlib.suppress(OSError):
        messages.send(ChildResult(name, value))
    logging.shutdown()


def explain(name: str, error: BaseException) -> RunFailed:
    """An unforeseen exception of a role as a failure of the run."""
    return RunFailed(f"{title(name)} failed: {type(error).__name__}: {error}", traceback.format_exc())


def _open_log(name: str, log_path: Path) -> Any:
    log_file = open(log_path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    for stream in (1, 2):  # what an environment or a C library prints: a hundred of them would bury the progress line
        os.dup2(log_file.fileno(), stream)
    faulthandler.enable(log_file, all_threads=True)
    if hasattr(faulthandler, "register"):  # `ChildProcess.kill` asks for the stacks
        faulthandler.register(signal.SIGUSR1, log_file, all_threads=True)
    logging.basicConfig(
        stream=log_file, level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True
    )
    logging.captureWarnings(True)
    return log_file
