"""Commands as subprocesses, side by side: as many as there are slots, and none outlives this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from asyncrl.config.machine import available_cores

_POLL_S = 0.05
_GRACE_S = 60.0
"""A run that was asked to stop finishes its update and saves; after this many seconds it is killed."""


@dataclass(frozen=True)
class Command:
    """`python -m MODULE ARGUMENT...`.

    Attributes:
        name: a name that no other command has while this one runs.
        module: the module to run.
        arguments: its arguments.
        log: file to which its output is appended.
        threads: threads that compute at the same time.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    log: Path
    threads: int = 1


@dataclass(frozen=True)
class Ended:
    """A command that has ended; a negative exit code is the number of the signal that killed it."""

    name: str
    exit_code: int


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    lifeline: int  # the writing end of its pipe
    threads: int
    slot: int
    kill_at: float | None = None


class Slots:
    """Starts commands, tells which have ended, and ends them all when it is left.

    Without a number of slots, commands run side by side as long as their threads have a core each. With a number of
    slots, each command has its own share of the cores, so that `auto` settings of a run follow from that share.

    Example:
        with Slots(2) as slots:
            slots.start(Command("a", "asyncrl.train", ("--env=CartPole-v1",), Path("a.log")))
            ended = slots.wait(1.0)
    """

    def __init__(self, num_slots: int | None = None) -> None:
        """Starts nothing; None for as many commands as the cores of this process allow."""
        self._num_slots = num_slots
        self._num_cores = available_cores()
        self._running: dict[str, _Running] = {}

    @property
    def names(self) -> list[str]:
        """Commands that run."""
        return list(self._running)

    @property
    def cores_of_a_slot(self) -> int:
        """Cores that one command may use."""
        if self._num_slots is None:
            return self._num_cores
        return max(1, self._num_cores // self._num_slots)

    def has_room(self, threads: int) -> bool:
        """Whether a command with this many threads may start now; one always may if none runs."""
        if self._num_slots is not None:
            return len(self._running) < self._num_slots
        busy = sum(running.threads for running in self._running.values())
        return not self._running or busy + threads <= self._num_cores

    def start(self, command: Command) -> None:
        """Starts a command in a process group of its own, so that Ctrl-C reaches it only through `stop`."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        slot = min(set(range(len(self._running) + 1)) - {running.slot for running in self._running.values()})
        reading, writing = os.pipe()
        owner = [sys.executable, "-m", "asyncrl.runtime.owned", str(reading), self._cores_of(slot)]
        try:
            with command.log.open("ab") as log:
                process = subprocess.Popen(
                    [*owner, command.module, *command.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(reading,),
                )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._running[command.name] = _Running(process, writing, command.threads, slot)

    def stop(self, name: str) -> None:
        """Asks a command to stop, as Ctrl-C would; it is killed if it has not ended after a minute."""
        running = self._running[name]
        if running.kill_at is None:
            running.process.send_signal(signal.SIGINT)
            running.kill_at = time.monotonic() + _GRACE_S

    def wait(self, timeout_s: float) -> list[Ended]:
        """Waits until a command has ended, at most this long; returns those that have."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            for running in self._running.values():
                if running.kill_at is not None and now >= running.kill_at:
                    _kill(running)
            ended = [name for name, running in self._running.items() if running.process.poll() is not None]
            if ended or now >= deadline:
                return [Ended(name, self._forget(name)) for name in ended]
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Asks all commands to stop and waits for them; kills those that do not, or all at a second Ctrl-C."""
        try:
            for name in self.names:
                self.stop(name)
            while self._running:
                self.wait(_GRACE_S)
        finally:
            for running in self._running.values():
                _kill(running)
            for name in self.names:
                self._running[name].process.wait()
                self._forget(name)

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _forget(self, name: str) -> int:
        running = self._running.pop(name)
        os.close(running.lifeline)
        return running.process.returncode

    def _cores_of(self, slot: int) -> str:
        """The cores of a slot; all if they are not shared out, or cannot be."""
        if self._num_slots is None or not hasattr(os, "sched_getaffinity"):
            return "all"
        usable = sorted(os.sched_getaffinity(0))
        share = self.cores_of_a_slot
        return ",".join(str(usable[(slot * share + idx) % len(usable)]) for idx in range(share))


def _kill(running: _Running) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, signal.SIGKILL)
