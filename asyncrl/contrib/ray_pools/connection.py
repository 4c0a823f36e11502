"""The connection to a Ray cluster: the only place that imports Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from asyncrl.contrib.ray_pools.pool import Pool, PoolStart
from asyncrl.contrib.ray_pools.settings import ClusterSettings
from asyncrl.processes.children import RunFailed

NUM_REQUESTS = 4
"""Requests for batches that are under way at a time: what is ready is joined when all of them are being answered."""

_THREADS = 2 * NUM_REQUESTS + 4  # takes, permits, and the other calls
_CONNECT_S, _LOOK_S = 10.0, 60.0
_LOOK = """
import logging, os, sys
os.environ["RAY_LOG_TO_STDERR"] = "0"
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
"""

_INLINE = {"RAY_max_direct_call_object_size": "8000000"}
"""Arguments and results of up to 8 MB travel with their call. Those of 100 kB or more would go through the object store
of Ray: the other machine learns where they are before it asks for them, so they arrive a round trip later."""
_NO_TOKEN = "InvalidAuthToken"
"""What Ray writes if it is refused. `ray start` asks for a token where there is one, other programs do not send it."""


def find_problem(config: ClusterSettings) -> str | None:
    """Why the cluster of these settings cannot be used, in one sentence; None if it can. Takes a few seconds."""
    if importlib.util.find_spec("ray") is None:
        return '--cluster=ray needs the package ray, which is not installed: pip install -e ".[ray]"'
    if (reason := _refusal(config.ray_address)) is not None:
        return reason
    try:
        found = subprocess.run(
            [sys.executable, "-c", _LOOK, config.ray_address], capture_output=True, text=True, timeout=_LOOK_S
        )
    except subprocess.TimeoutExpired:
        return f"No Ray cluster answered at --ray_address={config.ray_address} within {_LOOK_S:g} s."
    if found.returncode == 0:
        return None
    if _NO_TOKEN in found.stderr:
        return (
            f"The Ray cluster at --ray_address={config.ray_address} asks for a token: export RAY_AUTH_MODE=token, and "
            "give this machine the token of the cluster, in ~/.ray/auth_token or RAY_AUTH_TOKEN."
        )
    reason = found.stderr.strip().rpartition("\n")[2].partition(": ")[2] or f"exit code {found.returncode}"
    return f"--ray_address={config.ray_address}: no Ray cluster can be reached there ({reason.rstrip('.')})."


def _refusal(address: str) -> str | None:
    """Why nobody answers at an address; Ray itself tries for minutes."""
    if address == "auto":
        variable = os.environ.get("RAY_ADDRESS", "")
        if variable.startswith("ray://"):
            return f"RAY_ADDRESS={variable}: the learner's machine must be a node of the cluster, not a client."
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return f"--ray_address={address} is not auto or HOST:PORT."
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        return f"--ray_address={address}: nobody can be reached there ({error})."
    return None


class RayConnection:
    """A pool in an actor of a Ray cluster. Its methods are called by one thread."""

    def __init__(self, config: ClusterSettings, start: PoolStart) -> None:
        """Connects this process to the cluster and asks it for the actor, which may come later.

        Raises:
            RunFailed: the cluster cannot be reached.
        """
        for name, value in _INLINE.items():
            os.environ.setdefault(name, value)  # before the import, which reads it
        import ray

        self._ray = ray
        on_sigterm = signal.getsignal(signal.SIGTERM)
        if (reason := _refusal(config.ray_address)) is not None:
            raise RunFailed(reason, is_final=True)
        self._connect(config)
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has replaced it
        options = {
            "num_cpus": len(start.workers),
            "resources": config.ray_resources or None,
            "max_concurrency": _THREADS,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": {name: os.environ[name] for name in _INLINE}},
        }
        self._actor: Any = ray.remote(Pool).options(**options).remote(start)

    def _connect(self, config: ClusterSettings) -> None:
        outcome: Future[None] = Future()

        def connect() -> None:
            try:
                runtime_env = config.ray_runtime_env or None
                self._ray.init(config.ray_address, runtime_env=runtime_env, logging_level=logging.WARNING)
                outcome.set_result(None)
            except Exception as error:
                outcome.set_exception(error)

        threading.Thread(target=connect, daemon=True).start()  # it cannot be interrupted
        try:
            outcome.result(_LOOK_S)
        except Exception as error:
            is_late = isinstance(error, futures.TimeoutError)
            reason = f"no answer for {_LOOK_S:g} s" if is_late else _line_of(error, 0)
            text = f"the connection to the Ray cluster at --ray_address={config.ray_address} failed: {reason}"
            raise RunFailed(text, is_final=True) from error

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Calls a method of the pool; calls may be carried out in another order."""
        future: Future[Any] = getattr(self._actor, method).remote(*args).future()
        return future

    def explain(self, error: Exception) -> RunFailed:
        """What the exception of a call's future means for the run."""
        from ray.exceptions import ActorUnschedulableError, RayActorError, RuntimeEnvSetupError

        # The next attempt would fail in the same way.
        has_not_started = isinstance(error, (ActorUnschedulableError, RuntimeEnvSetupError))
        has_not_started |= isinstance(error, RayActorError) and error.actor_init_failed
        if has_not_started:
            return RunFailed(f"its actor cannot be started: {_line_of(error, -1)}", str(error), is_final=True)
        outcome = "has ended" if isinstance(error, RayActorError) else "has failed"
        return RunFailed(f"its actor {outcome}: {_line_of(error, 0)}", is_death=True)

    def close(self) -> None:
        """Ends the pool, which may have ended before."""
        with contextlib.suppress(Exception):  # the cluster may have ended
            self._ray.kill(self._actor)
        self._ray.shutdown()


def _line_of(error: Exception, number: int) -> str:
    """One of the lines of an exception that are not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[number].rstrip(".") if lines else type(error).__name__
