"""Commands as subprocesses, side by side: as many as there are core sets, and none outlives this process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from asyncrl.config.host import usable_cores
from asyncrl.config.machine import available_cores
from asyncrl.processes.lifeline import kill_group

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
    lifeline: socket.socket  # this process's end
    threads: int
    core_set: int  # its number
    kill_at: float | None = None


class CoreSets:
    """Starts commands, tells which have ended, and ends them all when it is left.

    A core set is the share of the cores that one command has. With a number of core sets, `auto` settings of a run
    follow from that share. Without a number, commands run side by side as long as their threads have a core each.

    Example:
        with CoreSets(2) as core_sets:
            core_sets.start(Command("a", "asyncrl.train", ("--env=CartPole-v1",), Path("a.log")))
            ended = core_sets.wait(1.0)
    """

    def __init__(self, num_core_sets: int | None = None) -> None:
        """Starts nothing; None for as many commands as the cores of this process allow."""
        self._num_core_sets = num_core_sets
        self._num_cores = available_cores()
        self._running: dict[str, _Running] = {}

    @property
    def names(self) -> list[str]:
        """Commands that run."""
        return list(self._running)

    @property
    def cores_per_set(self) -> int:
        """Cores that one command may use."""
        if self._num_core_sets is None:
            return self._num_cores
        return max(1, self._num_cores // self._num_core_sets)

    def has_room(self, threads: int) -> bool:
        """Whether a command with this many threads may start now; one always may if none runs."""
        if self._num_core_sets is not None:
            return len(self._running) < self._num_core_sets
        busy = sum(running.threads for running in self._running.values())
        return not self._running or busy + threads <= self._num_cores

    def start(self, command: Command) -> None:
        """Starts a command in its own process group, so that Ctrl-C reaches it only through `stop`."""
        command.log.parent.mkdir(parents=True, exist_ok=True)
        core_set = min(set(range(len(self._running) + 1)) - {running.core_set for running in self._running.values()})
        lifeline, commands_end = socket.socketpair()
        descriptors = (commands_end.fileno(), lifeline.fileno())
        owner = [sys.executable, "-m", "asyncrl.processes.owned", *map(str, descriptors), self._cores_of(core_set)]
        try:
            with command.log.open("ab") as log:
                process = subprocess.Popen(
                    [*owner, command.module, *command.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=descriptors,
                )
        except BaseException:
            lifeline.close()
            raise
        finally:
            commands_end.close()
        self._running[command.name] = _Running(process, lifeline, command.threads, core_set)

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
                    kill_group(running.process.pid)
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
                kill_group(running.process.pid)
            for name in self.names:
                self._running[name].process.wait()
                self._forget(name)

    def __enter__(self) -> CoreSets:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _forget(self, name: str) -> int:
        running = self._running.pop(name)
        kill_group(running.process.pid)  # what a run has left
        running.lifeline.close()
        return running.process.returncode

    def _cores_of(self, core_set: int) -> str:
        """The cores of a core set; all if they are not shared out, or cannot be."""
        usable = usable_cores()
        if self._num_core_sets is None or usable is None:
            return "all"
        share = self.cores_per_set
        return ",".join(str(usable[(core_set * share + idx) % len(usable)]) for idx in range(share))
