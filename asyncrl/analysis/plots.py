"""Plots of features: commands of `asyncrl plot`, whose figures are charts of a report, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from asyncrl.analysis.records import Run
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import hooks, load


class Figure(Protocol):
    """What a plot shows of one run, or of the runs of a group."""

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers as plain data."""

    def draw(self, path: Path) -> None:
        """Writes the figure to a file."""


@dataclass(frozen=True)
class Plot:
    """A plot of a feature.

    Attributes:
        description: what it draws, for --help.
        example: its words after `asyncrl plot`.
        caption: its name in a report.
        read: reads the runs of one figure; raises UsageError if a run has not recorded what is drawn.
        group_of: the group of a run, None for a run without one. The runs of a group are in one figure; the command
            draws all its runs as one group. Without this function each run has its own figure.
    """

    description: str
    example: str
    caption: str
    read: Callable[[Sequence[Run]], Figure]
    group_of: Callable[[Run], str | None] | None = None

    def figures(self, runs: Sequence[Run]) -> Iterator[tuple[str, Figure]]:
        """The figures of a report, with their captions; runs that have not recorded what is drawn have none."""
        groups: dict[str, list[Run]] = {}
        for number, run in enumerate(runs):
            group = str(number) if self.group_of is None else self.group_of(run)
            if group is not None:
                groups.setdefault(group, []).append(run)
        for members in groups.values():
            try:
                figure = self.read(members)
            except UsageError:
                continue
            yield f"{self.caption}: {', '.join(run.name for run in members)}", figure


def plots() -> dict[str, Plot]:
    """The plots of all features, by the names of their commands."""
    return {name: load(place) for name, place in hooks("PLOTS").items()}
