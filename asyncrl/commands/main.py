"""The command `asyncrl COMMAND`; `python -m asyncrl.COMMAND` starts the same module, for torchrun."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import asyncrl
from asyncrl.config.flags import nearest_hint
from asyncrl.config.hooks import hooks
from asyncrl.config.settings import all_settings
from asyncrl.processes.ending import end_process
from asyncrl.processes.reader import run_for_a_reader

COMMANDS = {
    "train": "train a policy, or resume a run",
    "validate": "check the settings of a run and show what it would need",
    "evaluate": "play a trained policy for a fixed number of episodes",
    "enjoy": "show a trained policy in a window, or write a video of it",
    "benchmark": "measure sync against async, in speed and returns",
    "plot": "draw a run, compare runs, or show how much faster more workers are",
    **{name: what for name, (_, what) in hooks("COMMANDS").items()},
    "doctor": "look at this machine, train for ten seconds, and say what to change",
    "completion": 'print a script that completes commands and flags: eval "$(asyncrl completion bash)", or zsh',
}
_WITH_SETTINGS = ("train", "validate", "benchmark")  # have the flags of training
_PLAYING = ("evaluate", "enjoy")  # make environments in their own process
_SHELLS = ("bash", "zsh")
_COMPLETION = """\
_asyncrl() {{
  local words="{commands}"
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}}" in
      {with_settings}) words="{settings}" ;;
      completion) words="{shells}" ;;
      *) words="" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [[ "$COMPREPLY" == *= ]] && compopt -o nospace 2>/dev/null
}}
complete -o default -F _asyncrl asyncrl"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; 2 if there is no such command.

    Without `argv` it is the whole program: it exits, also without a traceback where the output has lost its reader.
    """
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if argv is None:
        if name in COMMANDS:
            sys.argv = [f"asyncrl {name}", *rest]
        if sys.path[:1] not in ([""], [os.getcwd()]):
            sys.path.insert(0, os.getcwd())  # where `python -m` has it, in place of the command's folder
        if name in _PLAYING:
            run_for_a_reader(lambda: _run(name, rest, None), end_process)
        run_for_a_reader(lambda: _run(name, rest, None))
    return _run(name, rest, rest)


def _run(name: str, rest: Sequence[str], argv: Sequence[str] | None) -> int:
    """Runs a command; `argv` is what its own `main` gets: the rest of the command line, or None for a program."""
    if name in ("--help", "-h"):
        rows = (f"  {command:<12}{what}" for command, what in COMMANDS.items())
        print("usage: asyncrl COMMAND --name=value ...", "", "commands:", *rows, "", "asyncrl COMMAND --help", sep="\n")
        return 0
    if name == "--version":
        print(f"asyncrl {asyncrl.__version__}")
        return 0
    if name not in COMMANDS:
        hint = nearest_hint(name, COMMANDS)
        print(f"error: There is no command {name!r}: expected one of {', '.join(COMMANDS)}{hint}.", file=sys.stderr)
        return 2
    if name == "completion":
        return _print_completion(rest)
    module = importlib.import_module(hooks("COMMANDS").get(name, (f"asyncrl.commands.{name}", ""))[0])
    code: int = module.main(argv)
    return code


def run_module(name: str) -> NoReturn:
    """Runs a command as `python -m asyncrl.NAME`, for a module that only starts it."""
    run_for_a_reader(lambda: main([name, *sys.argv[1:]]))


def _print_completion(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in _SHELLS:
        print(f"error: The shell is missing: give asyncrl completion {' or '.join(_SHELLS)}.", file=sys.stderr)
        return 2
    if arguments[0] == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    flags = (f"--{name}" + ("" if setting.is_bool else "=") for name, setting in all_settings().items())
    added = (name for name, words in hooks("COMPLETIONS").items() if words == "settings")
    with_settings = "|".join((*_WITH_SETTINGS, *added))
    commands, settings, shells = " ".join(COMMANDS), " ".join(flags), " ".join(_SHELLS)
    print(_COMPLETION.format(commands=commands, with_settings=with_settings, settings=settings, shells=shells))
    return 0
