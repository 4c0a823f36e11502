"""Commands that a test starts, and ends even if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import Command


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts `python -m MODULE` with flags, in a folder of this test."""
    commands: list[Command] = []

    def start(module: str, *flags: str, is_fresh: bool = False) -> Command:
        commands.append(Command(module, *flags, cwd=tmp_path, is_fresh=is_fresh))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()
