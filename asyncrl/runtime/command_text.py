"""Commands as text, for a user to paste."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def command_text(module: str, *arguments: str) -> str:
    """Returns the command that runs a module with the same Python from the same working directory."""
    interpreter = Path(sys.executable)
    if interpreter.is_relative_to(Path.cwd()):
        interpreter = interpreter.relative_to(Path.cwd())
    return shlex.join([str(interpreter), "-m", module, *arguments])


def run_flags(train_dir: str, experiment: str) -> list[str]:
    """Returns the flags that name a run, without defaults."""
    named = [] if train_dir == "train_dir" else [f"--train_dir={train_dir}"]
    return [*named, f"--experiment={experiment}"]


def shown_path(path: Path) -> str:
    """Returns a path as text, relative if it is in the working directory."""
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path)
