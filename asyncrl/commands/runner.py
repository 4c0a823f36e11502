"""Runs a command: reads its options, prints --help or what is wrong, and returns the exit code."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import ExtraFlag, format_help, option_flags, parse_options, separate_words, split_flags
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.settings import all_settings
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.processes.reader import start_dropping_unread_output, stop_dropping_unread_output, write_from_handler
from asyncrl.processes.signals import STOPPING, is_same_request
from asyncrl.storage.checkpoint import CheckpointError
from asyncrl.storage.run_folder import find_saved_config

Options = TypeVar("Options")


def text_beside_json(prints_json: bool) -> contextlib.AbstractContextManager[object]:
    """Where text is printed while a command works: standard error if standard output is for JSON alone."""
    return contextlib.redirect_stdout(sys.stderr) if prints_json else contextlib.nullcontext()


class Command(ABC, Generic[Options]):
    """A command with its options, its help and its body.

    Attributes:
        usage: the command, as --help shows it.
        description: what it does.
        examples: commands to start from.
        model: the model of its options.
        words: name of the option that takes the arguments that are not flags; empty if there is none.
        instead: settings of training that it does not take, with what the user can do instead. The option `training`
            has the texts of all others. None if the command takes no settings.
        if_stopped: said after a signal has stopped all runs of a command that starts many; empty for others.
    """

    usage: str
    description: str
    examples: Sequence[str]
    model: type[BaseModel]
    words: str = ""
    instead: Mapping[str, str] | None = None
    if_stopped: str = ""

    @abstractmethod
    def run(self, options: Options) -> int:
        """Does the work of the command and returns its exit code."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command line; returns 2 for a user's mistake, 1 for an environment's failure, 130 for Ctrl-C."""
        arguments = sys.argv[1:] if argv is None else list(argv)
        if (text := self.help(arguments)) is not None:
            print(text)
            return 0
        if self.if_stopped:
            return run_many(lambda: self.run(self.read(arguments)), self.if_stopped)
        try:
            return _exit_code_of(lambda: self.run(self.read(arguments)))
        except KeyboardInterrupt:
            return 130
        finally:
            stop_dropping_unread_output()

    def flags(self, arguments: Sequence[str]) -> tuple[ExtraFlag, ...]:
        """The command's own flags in this command line."""
        return option_flags(self.model)

    def help(self, arguments: Sequence[str], page: str = "all") -> str | None:
        """The text of --help, None if the command line does not ask for it; `page` as in `format_help`."""
        if not {"--help", "-h"} & set(arguments):
            return None
        flags, settings = self.flags(arguments), {} if self.instead is None else {**all_settings()}
        for name in (*(self.instead or ()), *(flag.name for flag in flags)):
            settings.pop(name, None)
        return format_help(self.usage, self.description, settings, flags, self.examples, page)

    def read(self, arguments: Sequence[str]) -> Options:
        """Reads the options; raises UsageError with every problem of the command line."""
        words, tokens = self.separate_words(arguments)
        texts, wrong = split_flags(tokens, {} if self.instead is None else all_settings(), self.flags(arguments))
        own = {flag.name for flag in option_flags(self.model)}
        given: dict[str, Any] = {name: text for name, text in texts.items() if name in own}
        problems = list(map(str, wrong))
        if self.words:
            given[self.words] = words
        if self.instead is not None:
            given["training"] = {name: text for name, text in texts.items() if name not in own}
            problems += [f"--{name} cannot be set here: {why}." for name, why in self.instead.items() if name in texts]
        options: Any
        options, refused = parse_options(self.model, given)
        if problems := [*problems, *refused, *self.problems(given, options)]:
            raise UsageError(*problems)
        return options  # type: ignore[no-any-return]

    def separate_words(self, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Separates the arguments that are not flags from the flags and their values."""
        return separate_words(arguments, self.flags(arguments)) if self.words else ((), arguments)

    def problems(self, given: Mapping[str, Any], options: Options | None) -> Iterable[str]:
        """A sentence for each further problem of what is given, and of the options, None if one is refused."""
        return ()


class TrainingCommand(Command[Options]):
    """A command whose flags are settings; they include the settings of a user's algorithm."""

    usage = "asyncrl train"

    def help(self, arguments: Sequence[str], page: str = "all") -> None:
        """`load` prints it, because an algorithm of the user's may have more settings."""

    def load(self, arguments: Sequence[str], flags: Sequence[ExtraFlag]) -> LoadedConfig:
        """Reads the settings; mistakes are in the result. `flags` are those that are not settings."""
        texts = {"program": self.usage, "description": self.description}
        return load(arguments, flags, **texts, examples=self.examples, lenient=True, find_saved=find_saved_config)


class _Stopped(KeyboardInterrupt):
    """The process received one of the signals that stop runs."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def run_many(work: Callable[[], int], if_stopped: str) -> int:
    """Does the work of a command and returns its exit code.

    2 for a user's mistake, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, which is left alone under nohup.

    Args:
        work: starts runs, and stops them by itself when KeyboardInterrupt is raised.
        if_stopped: said after a stop.
    """
    is_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in STOPPING if not (number == signal.SIGHUP and is_nohup)]
    requests: list[tuple[int, float]] = []  # signals and their times

    def stop_work(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if requests and is_same_request(number, requests[-1][0], now - requests[-1][1]):
            return
        requests.append((number, now))
        write_from_handler("\nstopping all runs, which save first; Ctrl-C again kills them\n")
        raise _Stopped(number)

    previous = {number: signal.signal(number, stop_work) for number in numbers}
    try:
        return _exit_code_of(work)
    except KeyboardInterrupt as stop:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(if_stopped, file=sys.stderr, flush=True)
        return stop.exit_code if isinstance(stop, _Stopped) else 130
    finally:
        stop_dropping_unread_output()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit_code_of(work: Callable[[], int]) -> int:
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
