"""Runs a command: reads its options, prints --help or what is wrong, and returns the exit code."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import (
    ExtraFlag,
    format_help,
    option_flags,
    parse_options,
    separate_words,
    split_flags,
)
from asyncrl.config.settings import Setting, all_settings
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.runtime.checkpoint import CheckpointError
from asyncrl.runtime.reader import start_dropping_unread_output, stop_dropping_unread_output

Options = TypeVar("Options")


class Command(ABC, Generic[Options]):
    """A command with its options, its help and its body.

    Attributes:
        usage: the command, as --help shows it.
        description: what it does.
        examples: commands to start from.
        model: the model of its options.
        words: name of the option that takes the arguments that are not flags; empty if there is none.
        instead: settings of training that it does not take, with what the user can do instead; None if it takes none.
    """

    usage: str
    description: str
    examples: Sequence[str]
    model: type[BaseModel]
    words: str = ""
    instead: Mapping[str, str] | None = None

    @abstractmethod
    def run(self, options: Options) -> int:
        """Does the work of the command and returns its exit code; may raise what `exit_code` handles."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command line and returns its exit code.

        2 for a user's mistake, 1 for an environment's failure, 130 for Ctrl-C.
        """
        arguments = sys.argv[1:] if argv is None else list(argv)
        if (text := self.help(arguments)) is not None:
            print(text)
            return 0
        return self.exit_code(lambda: self.run(self.read(arguments)))

    def exit_code(self, work: Callable[[], int]) -> int:
        """Does the work and returns its exit code, or the one of the exception that it raises."""
        try:
            return exit_code_of(work)
        except KeyboardInterrupt:
            return 130
        finally:
            stop_dropping_unread_output()

    def flags(self) -> tuple[ExtraFlag, ...]:
        """The command's own flags."""
        return option_flags(self.model)

    def help(self, arguments: Sequence[str]) -> str | None:
        """The text of --help; None if the command line does not ask for it."""
        return self.help_page("all") if {"--help", "-h"} & set(arguments) else None

    def help_page(self, page: str) -> str:
        flags, settings = self.flags(), dict[str, Setting]()
        if self.instead is not None:
            hidden = {*self.instead, *(flag.name for flag in flags)}
            settings = {name: setting for name, setting in all_settings().items() if name not in hidden}
        return format_help(self.usage, self.description, settings, flags, self.examples, page)

    def read(self, arguments: Sequence[str]) -> Options:
        """Reads the options.

        Raises:
            UsageError: every problem of the command line.
        """
        words, tokens = self.separate_words(arguments)
        texts, wrong = split_flags(tokens, {}, self.flags())
        values: dict[str, Any] = {**texts, self.words: words} if self.words else texts
        options: Any
        options, refused = parse_options(self.model, values)
        problems = [*map(str, wrong), *refused, *self.word_problems(words)]
        if options is not None:
            problems += self.conflicts(options)
        if problems:
            raise UsageError(*problems)
        return options  # type: ignore[no-any-return]

    def separate_words(self, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Separates the arguments that are not flags from the flags and their values."""
        return separate_words(arguments, self.flags()) if self.words else ((), arguments)

    def word_problems(self, words: Sequence[str]) -> Iterable[str]:
        """A sentence for each problem of the arguments that are not flags."""
        return ()

    def conflicts(self, options: Options) -> Iterable[str]:
        """A sentence for each option that is not possible with others."""
        return ()


def exit_code_of(work: Callable[[], int]) -> int:
    """Does the work and returns its exit code; prints a user's mistake or an environment's failure."""
    try:
        return work()
    except (UsageError, CheckpointError, EnvironmentFailed) as error:
        print_error(error)
        return 1 if isinstance(error, EnvironmentFailed) else 2


def print_error(error: Exception) -> None:
    """Prints each text of an exception on standard error; from here on no output waits for its reader."""
    start_dropping_unread_output()
    print(*(f"error: {text}" for text in error.args), sep="\n", file=sys.stderr)
