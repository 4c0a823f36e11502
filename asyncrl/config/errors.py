"""Mistakes that the user can correct: one sentence (`UsageError`), or every problem of a run's settings as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class UsageError(Exception):
    """Mistakes of the user, usually one. Command lines print each text, one clear sentence, and exit with code 2."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


@dataclass(frozen=True)
class Problem:
    """One reason why a run cannot start, or a warning.

    Attributes:
        settings: names of the settings that it concerns.
        text: one sentence with values and arithmetic.
        suggestions: settings that would pass, each as `--name=value`.
    """

    settings: tuple[str, ...]
    text: str
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence("Would pass")

    def sentence(self, lead: str) -> str:
        """The text, followed by `lead` and the suggestions if there are any."""
        return f"{self.text} {lead}: {', or '.join(self.suggestions)}." if self.suggestions else self.text


class ConfigError(UsageError):
    """Every problem of the settings, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(*map(str, self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return ConfigError, (self.problems,)


def make_problem(settings: str, text: str, *suggestions: str) -> Problem:
    """A problem of the settings whose names `settings` has, with spaces between them."""
    return Problem(tuple(settings.split()), text, suggestions)
