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
    path = os.pathsep.join(filter(None, [str(HELPERS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(
        [sys.executable, *command], cwd=cwd, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
    )
