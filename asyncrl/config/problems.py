"""What is wrong with a run's settings, as data that the command lines print or write as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from asyncrl.config.errors import UsageError


@dataclass(frozen=True)
class Problem:
    """One thing that keeps a run from starting, or a warning.

    Attributes:
        settings: names of the settings that it is about.
        text: one sentence with values and arithmetic.
        suggestions: settings that would pass, each as `--name=value`.
    """

    settings: tuple[str, ...]
    text: str
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.sentence("Would pass")

    def sentence(self, lead: str) -> str:
        """The text, and the suggestions after the words that introduce them."""
        if not self.suggestions:
            return self.text
        return f"{self.text} {lead}: {', or '.join(self.suggestions)}."


def refused_value(flag: str, text: object, expected: str) -> str:
    """The sentence about a value that a flag does not take."""
    return f"--{flag}={text} is not possible: expected {expected}."


class ConfigError(UsageError):
    """All that is wrong with the settings at once, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return ConfigError, (self.problems,)
