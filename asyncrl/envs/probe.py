"""Finds an environment's spaces in a child process, so the environment's code never runs in the runner.

The child (`probe_child`) reads a request from its standard input and writes answers to a file, one line of JSON each.
Output of the environment goes to another file, which is shown only if the child exits without an answer. The files have
no names, so no file remains if a process is killed. The child ends when its parent ends.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import UsageError
from asyncrl.config.value_types import ImageChannels
from asyncrl.envs.errors import EnvironmentFailed, UnknownEnvironment, environment_output
from asyncrl.envs.spec import EnvSpec
from asyncrl.processes.main_guard import EXIT_OF_IMPORTED_MAIN, IN_PROBE, NO_MAIN_GUARD

_OUTPUT_SHOWN = 2000
_SLOW_S = 5.0
_STACKS_BEFORE_S = 2.0  # before time is up


def probe(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    timeout_s: float = 60.0,
    env_backend: str = "gym",
    atari_preprocessing: bool = True,
    image_channels: ImageChannels = "auto",
    image_keys: Sequence[str] = (),
    examine: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_clean: Callable[[], None] | None = None,
    say: Callable[[str], None] | None = None,
    advise: Callable[[str], None] | None = None,
    seed: int = 0,
) -> EnvSpec:
    """Makes, resets and steps the environment in a child process.

    Args:
        env_id: as for `make_env`.
        env_kwargs: as for `make_env`.
        timeout_s: time limit for the child process.
        env_backend: as for `make_env`.
        atari_preprocessing: as for `make_env`.
        image_channels: as for `read_spec`.
        image_keys: as for `read_spec`.
        examine: `module:function` of a further examination (`asyncrl.config.replay_kinds.ReplayKind`).
        warn: called with each finding of Gymnasium's checker; without it, the checker does not run.
        on_clean: called if the checker has checked the environment and found nothing.
        say: called once, with a sentence, if the check takes more than a few seconds.
        advise: called with a sentence for each wrapper that does what the run does, for masks that are not read, for
            what `examine` finds, and for numbers that float32 loses; also if the environment fails.
        seed: the run's.

    Raises:
        UsageError: the environment cannot be made, its spaces are not supported, or its module starts a run.
        EnvironmentFailed: the environment raised, its process died, or it took longer than `timeout_s`.
    """
    request = {
        "env_id": env_id,
        "maker": base64.b64encode(env_id.pickled()).decode() if isinstance(env_id, EnvMaker) else None,
        "env_kwargs": dict(env_kwargs or {}),
        "env_backend": env_backend,
        "atari_preprocessing": atari_preprocessing,
        "image_channels": image_channels,
        "seed": seed,
        "image_keys": list(image_keys),
        "examine": examine,
        "is_checked": warn is not None,
        # The child finds modules where this process finds them; "" is the working directory for both.
        "search_path": [entry or os.getcwd() for entry in sys.path],
        "stacks_at": time.monotonic() + timeout_s - min(_STACKS_BEFORE_S, timeout_s / 4),  # one clock for all processes
    }

    def on_slow() -> None:
        if say is not None:
            say(f"Checking {env_id}: it has {timeout_s:g} s to be made, reset and stepped (--env_start_timeout).")

    exit_code, answers, output = _run_child(request, timeout_s, on_slow)
    answer = answers[0] if answers else None
    if answer is None and exit_code is None:
        text = f"{env_id} was not made, reset and stepped within {timeout_s:g} s"
        text += "; a slow simulator may need a larger --env_start_timeout"
        raise EnvironmentFailed(f"{text}; its last output:\n{output}" if output else f"{text}.")
    if answer is None and exit_code == EXIT_OF_IMPORTED_MAIN:
        raise UsageError(f"--env={env_id}: {NO_MAIN_GUARD}")
    if answer is None:
        death = f"{env_id}: the process that made it died ({_describe_exit(exit_code)})"
        raise EnvironmentFailed(f"{death}; its last output:\n{output or 'none'}")
    if advise is not None:
        for finding in answer["findings"]:
            advise(f"{env_id}: {finding}.")
    if "unknown_environment" in answer:
        raise UnknownEnvironment(answer["unknown_environment"])
    if "usage_error" in answer:
        raise UsageError(answer["usage_error"])
    if "failure" in answer:
        raise EnvironmentFailed(answer["failure"])
    if warn is not None:
        findings = answers[1] if len(answers) > 1 else [f"it did not finish ({_describe_exit(exit_code)})"]
        for finding in findings or ():
            warn(f"gymnasium.utils.env_checker.check_env on {env_id}: {finding}")
        if findings == [] and on_clean is not None:
            on_clean()
    return EnvSpec.from_data(answer["spec"])


def _run_child(
    request: Mapping[str, Any], timeout_s: float, on_slow: Callable[[], None]
) -> tuple[int | None, list[Any], str]:
    """Returns the child's exit code (None if it was killed after the time limit), its answers and its last output."""
    lifeline, held_open = socket.socketpair()
    with (
        tempfile.TemporaryFile() as request_file,
        tempfile.TemporaryFile() as answer_file,
        tempfile.TemporaryFile() as output_file,
        lifeline,
        held_open,
    ):
        request_file.write(json.dumps(request).encode())
        request_file.seek(0)
        descriptors = (answer_file.fileno(), lifeline.fileno(), held_open.fileno())
        child = subprocess.Popen(
            [sys.executable, "-m", "asyncrl.envs.probe_child", *map(str, descriptors)],
            stdin=request_file,
            stdout=output_file,
            stderr=subprocess.STDOUT,
            # This process has no terminal, so breakpoint() has no effect here.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(request["search_path"]),
                "PYTHONBREAKPOINT": "0",
                "PYTHONUNBUFFERED": "1",  # what it printed before it hangs or dies is shown, with its stacks
                "PYTHONFAULTHANDLER": "1",
                IN_PROBE: "1",
            },
            start_new_session=True,
            pass_fds=descriptors,
        )
        lifeline.close()
        try:
            exit_code = _wait(child, timeout_s, on_slow)
        finally:
            # The environment may have started processes, which share the child's session.
            _kill_group(child)
        answer_file.seek(0)
        output_file.seek(0)
        lines = answer_file.read().split(b"\n")[:-1]  # the last one may be cut off
        output = environment_output(output_file.read().decode(errors="replace"))[-_OUTPUT_SHOWN:].strip()
        return exit_code, [json.loads(line) for line in lines], output


def _wait(child: subprocess.Popen[bytes], timeout_s: float, on_slow: Callable[[], None]) -> int | None:
    """Returns the exit code; None if time is up."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(min(_SLOW_S, timeout_s))
    if timeout_s > _SLOW_S:
        on_slow()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout_s - _SLOW_S)
    return None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()


def _describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "time was up"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {signal.Signals(-exit_code).name}"
