"""Child processes: how they start, how they end, and how what goes wrong in them reaches the runner as text.

Children start from a fork server that has the heavy modules loaded already. They ignore Ctrl-C (the runner decides),
die with their parent, and write a log file of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PRELOADED = ("torch", "gymnasium", "asyncrl.runner")

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


@dataclass(frozen=True)
class ChildFailure:
    """What went wrong in a child: one line that says it, and the traceback as text.

    `exit_code` and `is_final` are those of a `RunFailed` which the child raised.
    """

    child: str
    summary: str
    details: str
    exit_code: int = 1
    is_final: bool = False


def process_context(extra_modules: Sequence[str] = ()) -> BaseContext:
    """The start method of all children, with its server's modules set; nothing is started yet.

    NumPy's BLAS, which workers act with, would otherwise start a thread for every core in every worker.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, *extra_modules])
    return context


def start_loading_modules(context: BaseContext) -> None:
    """Starts the fork server, which loads its modules while the runner does other things."""
    if context.get_start_method() == "forkserver":
        multiprocessing.forkserver.ensure_running()


@dataclass(frozen=True)
class ChildResult:
    """What a child's target returned."""

    child: str
    value: Any


class ChildProcess:
    """One child: its process, and the pipe through which it says what came of it."""

    def __init__(
        self, context: BaseContext, name: str, log_path: Path, target: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Starts `target(*args)` in a new process."""
        self.name = name
        self.messages: Connection
        self.messages, child_end = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_child_main, args=(name, log_path, child_end, target, args), name=name, daemon=True
        )
        self.process.start()
        child_end.close()

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes ready when the process ends."""
        return self.process.sentinel

    def take_outcome(self) -> ChildResult | ChildFailure | None:
        """What came of the child, None while it runs and has said nothing.

        A process that ended without a word gets a failure that says how it ended.
        """
        ended = not self.process.is_alive()
        with contextlib.suppress(EOFError, OSError):
            if self.messages.poll():
                outcome: ChildResult | ChildFailure = self.messages.recv()
                return outcome
        return ChildFailure(self.name, f"{self.name} {describe_exit(self.process.exitcode)}", "") if ended else None

    def end(self, timeout_s: float) -> bool:
        """Waits for the process to end, and kills it after the timeout.

        Returns:
            Whether it ended by itself.
        """
        self.process.join(timeout_s)
        ended = not self.process.is_alive()
        if not ended:
            self.process.kill()
            self.process.join(5.0)
        self.messages.close()
        return ended


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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent()
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
    return RunFailed(f"{name} failed: {type(error).__name__}: {error}", traceback.format_exc())


def _open_log(name: str, log_path: Path) -> Any:
    log_file = open(log_path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - lives as long as the process
    for stream in (1, 2):  # what an environment or a C library prints: a hundred of them would bury the progress line
        os.dup2(log_file.fileno(), stream)
    faulthandler.enable(log_file, all_threads=True)
    logging.basicConfig(
        stream=log_file, level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True
    )
    logging.captureWarnings(True)
    return log_file


def _die_with_parent() -> None:
    """Ends this process as soon as the runner is gone, or the fork server that it came from.

    The fork server alone is no help when the runner is killed: it lives as long as any of its children.
    """
    threading.Thread(target=_watch_parent, name="watches the parent", daemon=True).start()
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        log.warning("could not ask to die with the parent: errno %d", ctypes.get_errno())


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
