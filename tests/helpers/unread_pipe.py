"""Commands whose output nobody reads."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import HELPERS
from quick_start import QuickProcess

PATIENCE_S = 90.0


@pytest.fixture
def unread() -> Iterator[int]:
    """The writing end of a pipe that is full."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # type: ignore[attr-defined]
    os.write(writing, b"." * 4096)
    yield writing
    os.close(reading)
    os.close(writing)


def start(command: tuple[str, ...], cwd: Path, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    """Starts Python with arguments."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=_environment(),
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def start_quickly(module: str, flags: tuple[str, ...], cwd: Path, stdout: int, stderr: int) -> QuickProcess:
    """Starts `python -m module` in a process that has loaded PyTorch."""
    return QuickProcess(module, flags, cwd, _environment(), (stdout, stderr))


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
