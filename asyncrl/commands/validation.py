"""Options of `asyncrl validate`: of the command, and of a feature with what it shows (hook `VALIDATION`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from asyncrl.run.preflight import Preflight


class Options(BaseModel):
    """Flags of the command that are not settings, as fields made by `asyncrl.config.flags.option`."""

    def find_problems(self) -> Iterable[str]:
        """A sentence for each mistake in the combination of the options."""
        return ()

    def lines(self, result: Preflight) -> Iterable[tuple[str, str]]:
        """Title and text of each line below the plan of a run that can start."""
        return ()

    def data(self, result: Preflight) -> Mapping[str, object]:
        """Entries of the JSON object."""
        return {}
