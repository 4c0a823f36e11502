"""RUN: the argument of the commands that read one run, and the flags that name it as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from asyncrl.commands.runner import Command, Options
from asyncrl.config.flags import option
from asyncrl.storage.locating import TRAIN_DIR


class RunOptions(BaseModel):
    """Options of a command that reads one run."""

    runs: tuple[str, ...] = ()
    experiment: str | None = option(None, "the run, in place of the argument RUN")
    train_dir: str = option(TRAIN_DIR, "folder that holds all runs [default train_dir]")

    @property
    def named_run(self) -> str | None:
        """The run that the command line names; None without one."""
        return self.runs[0] if self.runs else self.experiment


class RunCommand(Command[Options]):
    """A command that reads one run; its options are `RunOptions`."""

    words = "runs"

    def problems(self, given: Mapping[str, Any], options: Options | None) -> Iterator[str]:
        names = [*given["runs"], *filter(None, [given.get("experiment")])]
        if len(names) > 1:
            yield f"Give one run, not {' and '.join(names)}."
