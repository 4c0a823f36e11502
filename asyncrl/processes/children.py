"""Child processes: how they start and end, and how their failures reach the runner as text.

Children start from a fork server that has loaded the heavy modules. They ignore Ctrl-C (the runner decides), end with
the runner, and write separate log files. Each leads a process group, so that what its environments start ends with it.
They outlive the fork server: if it dies, multiprocessing no longer knows
their state, so each child is watched through a descriptor of its process (pidfd) where the system has them.

The runner waits on the children's sentinels and on the pipes of their outcomes, never on a queue.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import psutil

from asyncrl.config.host import START_METHOD, open_process
from asyncrl.observers.reports import Report
from asyncrl.processes.ending import flush_output
from asyncrl.processes.lifeline import end_with, kill_group
from asyncrl.processes.main_guard import EXIT_OF_IMPORTED_MAIN, NO_MAIN_GUARD
from asyncrl.processes.reporting import ReportChannel
from asyncrl.processes.signals import STOPPING, suspended_together
from asyncrl.processes.temporary_folder import use_folder_for_sockets, use_writable_shared_memory

EXIT_FAILED_TOO_OFTEN = 3
"""Exit code when processes or environments have failed as often as the settings allow."""
_EXIT_S, _STACK_S, _KILLED_S, _REAP_S, _CLOSING_S = 2.0, 0.5, 5.0, 1.0, 1.0
_UNKNOWN_EXIT = 255  # multiprocessing's exit code of a child whose fork server has died
_PRELOADED = ("torch", "gymnasium", "asyncrl.run.runner")

log = logging.getLogger(__name__)


class RunFailed(Exception):
    """A run cannot continue.

    Attributes:
        summary: one line for the user.
        details: a traceback, or "".
        exit_code: exit code of the command.
        is_final: starting the process again would not help.
        is_death: what failed is not a mistake of the user's code: a process or a machine was lost.
    """

    def __init__(
        self, summary: str, details: str = "", exit_code: int = 1, is_final: bool = False, is_death: bool = False
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.details = details
        self.exit_code = exit_code
        self.is_final = is_final
        self.is_death = is_death


class LearnerDied(RunFailed):
    """The learner's process ended without a message: the run can only continue from its last checkpoint."""


@dataclass(frozen=True)
class ChildResult:
    """What a child's target returned."""

    child: str
    value: Any


@dataclass(frozen=True)
class ChildFailure:
    """The failure of a child: one line, and the traceback as text.

    `exit_code` and `is_final` are those of a `RunFailed` that the child raised. `is_death`: it ended without a message,
    or says that a process or a machine that it worked for was lost.
    """

    child: str
    summary: str
    details: str
    exit_code: int = 1
    is_final: bool = False
    is_death: bool = False


def process_context(first_modules: Sequence[str] = ()) -> BaseContext:
    """Returns the start method of all children, and sets the modules of its server; nothing is started yet.

    NumPy's BLAS, with which workers act, would otherwise start a thread for every core in every worker.

    Args:
        first_modules: modules that the server loads before all others.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file):
        del main.__file__  # of a script from standard input, which children can import no more than a notebook
    if START_METHOD == "spawn":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*first_modules, *_PRELOADED])
    return context


def allow_descriptors(wanted: int) -> None:
    """Raises the limit on this process's open files to `wanted`, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def start_loading_modules(context: BaseContext) -> None:
    """Starts the fork server, which loads its modules in the background; also if the previous one has died."""
    if context.get_start_method() != "forkserver":
        return
    _leave_fork_server_to_its_owner()
    before = _fork_server_pid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # which the tracker does not ignore
    try:
        if before is None:
            use_folder_for_sockets()
            use_writable_shared_memory()
        resource_tracker.ensure_running()  # started by the fork server, it would unblock Ctrl-C
        # The server ignores Ctrl-C only when all is loaded, and SIGTERM and SIGHUP never.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if before is not None and _fork_server_pid() != before:
        log.warning("the fork server died and was restarted; processes that it started continue")


def _fork_server_pid() -> int | None:
    pid: int | None = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    return pid


def _leave_fork_server_to_its_owner() -> None:
    """Forgets a fork server that this process has inherited: only its parent can wait for it.

    So a process that was forked from one that has trained starts its own fork server.
    """
    pid = _fork_server_pid()
    if pid is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).ppid() == os.getpid():
            return
    server: Any = multiprocessing.forkserver._forkserver
    os.close(server._forkserver_alive_fd)  # which would keep it running after its owner has ended
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    server._lock = threading.Lock()  # the owner may have held it when this process was forked


@contextlib.contextmanager
def _allowed_to_start_processes() -> Iterator[None]:
    """Lets a daemonic process, such as one of `multiprocessing.Pool`, start children: they end with it all the same."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    is_daemon = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = is_daemon


@contextlib.contextmanager
def _stopping_blocked(context: BaseContext) -> Iterator[None]:
    """Keeps signals that stop a run from a child that is being spawned, until `_child_main` can answer them.

    A child of the fork server has them blocked from the server.
    """
    if context.get_start_method() != "spawn":
        yield
        return
    resource_tracker.ensure_running()  # it would unblock them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class ChildProcess:
    """One child: its process, the pipe of its outcome, and the channel of its reports.

    Attributes:
        has_ended: whether `end` has seen the end of the process.
    """

    def __init__(
        self,
        context: BaseContext,
        name: str,
        log_path: Path,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        reports: ReportChannel,
    ) -> None:
        """Starts `target(*args, reports.sender)` in a new process."""
        self.name = name
        self.reports = reports
        self.has_ended = False
        self._kill_reason: str | None = None
        self.messages: Connection
        self.messages, child_end = context.Pipe(duplex=False)
        self._lifeline, childs_lifeline = socket.socketpair()
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_child_main,
            args=(name, log_path, (childs_lifeline, self._lifeline), child_end, target, (*args, reports.sender)),
            name=name,
            daemon=True,
        )
        try:
            with _allowed_to_start_processes(), _stopping_blocked(context):
                self.process.start()
        except (OSError, EOFError) as error:
            self.messages.close()
            self._lifeline.close()
            raise RunFailed(f"{title(name)} could not be started: {type(error).__name__}: {error}") from error
        finally:
            child_end.close()
            childs_lifeline.close()
        assert self.process.pid is not None
        self.pid: int = self.process.pid
        self._fork_server = _fork_server_pid()
        self._pidfd = open_process(self.pid)

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes ready when the process ends."""
        return self.process.sentinel if self._pidfd is None else self._pidfd

    def poll_result(self) -> ChildResult | ChildFailure | None:
        """Returns the outcome of the child, None while it runs.

        A process that ended without a message gets a failure that describes its exit.
        """
        has_ended = self._wait_for_end(0.0)
        with contextlib.suppress(EOFError, OSError):
            if self.messages.poll():
                outcome: ChildResult | ChildFailure = self.messages.recv()
                return outcome
        if not has_ended:
            return None
        self.process.join(_EXIT_S)  # the fork server passes the exit code on a moment later
        if self.process.exitcode == EXIT_OF_IMPORTED_MAIN:
            return ChildFailure(self.name, NO_MAIN_GUARD, "", is_final=True)
        if self._kill_reason is not None:
            reason = self._kill_reason
        elif self._is_orphan:
            reason = "died, exit status unknown: the fork server had exited"
        else:
            reason = describe_exit(self.process.exitcode)
        return ChildFailure(self.name, f"{title(self.name)} {reason}", "", is_death=True)

    def kill(self, reason: str) -> None:
        """Kills a process that hangs, after it has written its stacks into its log.

        Args:
            reason: what its failure says in place of the signal, such as "made no step".
        """
        self._kill_reason = reason
        if hasattr(signal, "SIGUSR1"):
            self._send(signal.SIGUSR1)
            self._wait_for_end(_STACK_S)
        self._send(signal.SIGKILL)

    def end(self, timeout_s: float) -> bool:
        """Waits for the process to end, and kills it after the timeout; returns whether it ended by itself.

        What its environments have started is killed with it.
        """
        has_ended = self._wait_for_end(timeout_s)
        if not has_ended or self._is_orphan:
            self._send(signal.SIGKILL)
        self.has_ended = self._wait_for_end(_KILLED_S)
        kill_group(self.pid)  # the kernel has done this unless one of them holds the child's end of the lifeline
        self._lifeline.close()
        self.process.join(_EXIT_S)
        self.messages.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return has_ended

    @property
    def _is_orphan(self) -> bool:
        """Whether multiprocessing reports its end only because the fork server, which reports exits, has died."""
        return self.process.exitcode == _UNKNOWN_EXIT and self._fork_server != _fork_server_pid()

    def _wait_for_end(self, timeout_s: float) -> bool:
        if connection.wait([self.sentinel], timeout_s):
            return True
        # Without a pidfd the sentinel is a pipe, which processes that an environment has started may hold open.
        return self._pidfd is None and self.process.exitcode is not None

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)


class ProcessManager:
    """Starts the children of a run, reports how each ends, and ends them all."""

    def __init__(self, context: BaseContext, log_path: Callable[[str], Path]) -> None:
        """Starts nothing; `log_path` returns the log file of a child."""
        self._context = context
        self._log_path = log_path
        self._inbox: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._running: dict[str, ChildProcess] = {}
        self._ended: dict[str, ChildProcess] = {}
        self._closing: list[ReportChannel] = []
        self._num_started = 0
        self._suspension = contextlib.ExitStack()
        groups = suspended_together(lambda: [child.pid for child in self._running.values()])
        self._suspension.enter_context(groups)
        # An interpreter that exits while children run sends them SIGTERM, which they ignore, and waits for them.
        Finalize(self, _kill_all, (self._running, self._ended), exitpriority=10)

    def start(self, name: str, target: Callable[..., Any], *args: Any) -> None:
        """Starts `target(*args, reports)` in a child process, where `reports` sends reports to this process.

        A name may be used again after `reap`.

        Raises:
            RunFailed: no process could be started.
        """
        start_loading_modules(self._context)  # a fork server that starts with the process would not ignore SIGTERM
        self._num_started += 1
        channel = ReportChannel(f"{name} #{self._num_started}", self._inbox)
        self._closing.append(channel)  # in case the process cannot be started
        self._running[name] = ChildProcess(self._context, name, self._log_path(name), target, args, channel)
        self._closing.remove(channel)

    @property
    def running(self) -> list[str]:
        """Names of the children without an outcome."""
        return list(self._running)

    def wait(self, timeout_s: float) -> list[ChildResult | ChildFailure]:
        """Waits for outcomes of children, at most `timeout_s`; each child has one outcome."""
        if self._running:
            watched = [part for child in self._running.values() for part in (child.sentinel, child.messages)]
            connection.wait(watched, timeout_s)
        else:  # all wait for a restart
            time.sleep(timeout_s)
        start_loading_modules(self._context)
        outcomes = []
        for name, child in list(self._running.items()):
            outcome = child.poll_result()
            if outcome is not None:
                outcomes.append(outcome)
                self._ended[name] = self._running.pop(name)
        return outcomes

    def reap(self, name: str) -> bool:
        """Makes sure that the process of a child with an outcome has ended, and frees its resources.

        Returns whether it has ended: the kernel may not end a process at once.
        """
        child = self._ended.pop(name)
        child.end(_REAP_S)
        child.reports.begin_closing()
        self._closing = [child.reports, *(other for other in self._closing if not other.is_closed)]
        return child.has_ended

    def kill_hung(self, name: str, reason: str) -> None:
        """Kills a child that hangs, after it has logged its stacks; see `ChildProcess.kill`."""
        self._running[name].kill(reason)

    def take_reports(self) -> list[Report]:
        """Returns the reports since the last call."""
        return [self._inbox.get() for _ in range(self._inbox.qsize())]

    def end(self, timeout_s: float) -> list[str]:
        """Waits for all children to end and kills the others after `timeout_s`; returns the names of those."""
        deadline = time.monotonic() + timeout_s
        children = [*self._ended.values(), *self._running.values()]
        killed = [child.name for child in children if not child.end(max(0.0, deadline - time.monotonic()))]
        channels = [*self._closing, *(child.reports for child in children)]
        for channel in channels:
            channel.begin_closing()
        deadline = time.monotonic() + _CLOSING_S
        for channel in channels:
            channel.close(max(0.0, deadline - time.monotonic()))
        self._suspension.close()
        self._running.clear()
        self._ended.clear()
        self._closing = []
        return killed


def _kill_all(*groups: dict[str, ChildProcess]) -> None:
    for child in (child for group in groups for child in group.values()):
        child.end(0.0)


def title(name: str) -> str:
    """Returns a child's name in words: `rollout worker 2` for `rollout-2`, `learner of policy 1` for `learner-1`."""
    role, _, number = name.partition("-")
    if not number.isdigit():
        return name
    if role == "pool":
        return f"pool {number} of rollout workers"
    return f"learner of policy {number}" if role == "learner" else f"{role} worker {number}"


def describe_exit(exit_code: int | None) -> str:
    """Returns an exit code in words: the signal, or the number."""
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", possibly out of memory" if name == "SIGKILL" else ""
    return f"died: {name}{hint}"


def explain(name: str, error: BaseException, is_final: bool = False) -> RunFailed:
    """Returns an unexpected exception of a role, which is being handled, as a failure of the run.

    With `is_final` the role is not restarted: a successor would compute the same and raise again.
    """
    summary = f"{title(name)} failed: {type(error).__name__}: {error}"
    return RunFailed(summary, traceback.format_exc(), is_final=is_final)


def _child_main(
    name: str,
    log_path: Path,
    lifeline: tuple[socket.socket, socket.socket],
    messages: Connection,
    target: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _leave_sigterm_to_the_runner()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # for what the environment starts
    _return_to_the_terminal_to_read()
    end_with(*(end.detach() for end in lifeline))
    # It is a daemon, which ends with the runner; its environments may start processes all the same.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    log_file = _open_log(name, log_path)
    log.info("started as process %d", os.getpid())
    try:
        value = target(*args)
    except BaseException as error:
        _end_own_children()
        flush_output()
        log.exception("failed")
        failure = error if isinstance(error, RunFailed) else explain(name, error)
        with contextlib.suppress(OSError):
            ending = failure.exit_code, failure.is_final, failure.is_death
            messages.send(ChildFailure(name, failure.summary, failure.details, *ending))
        log_file.flush()
        os._exit(1)
    _end_own_children()
    log.info("done")
    with contextlib.suppress(OSError):
        messages.send(ChildResult(name, value))
    logging.shutdown()
    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    flush_output()
    os._exit(0)  # multiprocessing would wait for threads that the environment has left


def _end_own_children() -> None:
    """Ends what the environments have started and not ended: at its exit this process would wait for them."""
    for child in multiprocessing.active_children():
        child.terminate()


def _return_to_the_terminal_to_read() -> None:
    """Lets an environment read from the terminal (a debugger on /dev/tty), although its group is in the background.

    The kernel stops a group that does so. This process then goes back into the runner's group, where it may read as
    often as it likes; what its environments have started before stays in the other group, and ends with it.
    """
    if not hasattr(signal, "SIGTTIN"):
        return
    group_of_runner = os.getpgrp()

    def on_read(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # the runner's group has ended
            os.setpgid(0, group_of_runner)
            os.killpg(os.getpid(), signal.SIGCONT)  # which the same signal has stopped

    signal.signal(signal.SIGTTIN, on_read)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # changes of the terminal's modes are allowed


def _leave_sigterm_to_the_runner() -> None:
    """Ignores SIGTERM, which systemd, SLURM and `timeout` send to all processes: the runner ends this one in time.

    A process that the environment forks does not ignore it: otherwise its owner could not terminate it.
    """
    role = os.getpid()

    def on_sigterm(number: int, _: object) -> None:
        if os.getpid() != role:  # forked by a library that calls no hook of Python
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(signal.SIGTERM, on_sigterm)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def _open_log(name: str, log_path: Path) -> Any:
    log_file = open(log_path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
    for stream in (1, 2):  # output of environments and C libraries would hide the progress line
        os.dup2(log_file.fileno(), stream)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a process that dies has written what it printed
        sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable(log_file, all_threads=True)
    if hasattr(faulthandler, "register"):  # `ChildProcess.kill` asks for the stacks
        faulthandler.register(signal.SIGUSR1, log_file, all_threads=True)
    logging.basicConfig(
        stream=log_file, level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True
    )
    logging.captureWarnings(True)
    return log_file
