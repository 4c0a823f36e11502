"""The error for an environment that raised or died, and tracebacks of the user's code."""

from __future__ import annotations

import bdb
import importlib
import os
import re
import sys
import traceback
from pathlib import Path

from asyncrl.config.errors import UsageError

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = Path(bdb.__file__).resolve().parent
_HIDDEN_FILES = {
    *(_STANDARD_LIBRARY / name for name in ("bdb.py", "cmd.py", "pdb.py")),
    Path(importlib.__file__).resolve(),
}
_FILES_OF_THREADS = {_STANDARD_LIBRARY / name for name in ("threading.py", "runpy.py")}
_OF_FAULTHANDLER = re.compile(r"Extension modules: |Timeout \(\d+:\d\d:\d\d")
_DUMPED_FRAME = re.compile(r'  File "(.*)", line \d+ in ')
_THREAD_WITHOUT_FRAMES = re.compile(r"^(?:Current t|T)hread 0x.*(?:\n(?=\n)|\Z)", re.MULTILINE)
_BEFORE_MUJOCO_4 = ("metaworld", "gymnasium_robotics", "robosuite", "dm_control")
"""Packages whose releases of 2026 cannot make their environments with MuJoCo 4."""
_NO_TERMINAL = "The debugger stopped: this process has no terminal. Start the run with --serial_mode=True to debug."


FATAL_IN_A_ROW = 3
FIRST_STEPS = 10
"""A new environment fails at once if it fails in its reset or in so many first steps. If the environments in one place
fail so in the same way, so many times in a row, the code is broken."""

ENVIRONMENT_EXCEPTIONS = (Exception, SystemExit)
"""What an environment may raise; SystemExit is `sys.exit()`, which many call when their window is closed."""


class EnvironmentFailed(Exception):
    """An environment raised an exception. The text says where and ends with the environment's traceback."""


class UnknownEnvironment(UsageError):
    """Gymnasium knows no environment of the given id."""


def environment_traceback(error: BaseException) -> str:
    """The traceback of `error` and of the exceptions that caused it, with the frames of the user's code.

    Frames of this package, of the debugger and of imports are left out, and frames of Gymnasium unless they raise. If
    there are no others, the last one is shown. A simulator that may be made for an earlier MuJoCo is named at the end.
    """
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _leave_out_frames(shown)
    text = "".join(shown.format()).rstrip() + _mujoco_hint(error)
    return f"{text}\n{_NO_TERMINAL}" if isinstance(error, bdb.BdbQuit) else text


def kind_of(error: BaseException) -> tuple[object, ...]:
    """The type of an exception and the line that raised it."""
    trace, place = error.__traceback__, None
    while trace is not None:
        place, trace = (trace.tb_frame.f_code.co_filename, trace.tb_lineno), trace.tb_next
    return type(error), place


def _mujoco_hint(error: BaseException) -> str:
    """What to do if a simulator has failed that may not know MuJoCo 4, and MuJoCo 4 is installed; else empty."""
    version = str(getattr(sys.modules.get("mujoco"), "__version__", "0"))
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) < 4:
        return ""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    files = [Path(frame.filename) for each in causes for frame in traceback.extract_tb(each.__traceback__)]
    found = next((name for name in _BEFORE_MUJOCO_4 if any(name in file.parts for file in files)), None)
    if found is None:
        return ""
    return f"\nmujoco {version} is installed, and {found} may need an earlier version: pip install 'mujoco<4'"


def environment_output(output: str) -> str:
    """The output of a process that made an environment; stacks that faulthandler wrote have the user's frames only."""
    lines = [line for line in output.splitlines() if not _is_left_out(line)]
    return re.sub(r"\n{3,}", "\n\n", _THREAD_WITHOUT_FRAMES.sub("", "\n".join(lines)))


def _is_left_out(line: str) -> bool:
    frame = _DUMPED_FRAME.match(line)
    if frame is None:
        return _OF_FAULTHANDLER.match(line) is not None
    return _is_hidden(frame[1]) or Path(os.path.realpath(frame[1])) in _FILES_OF_THREADS


def _leave_out_frames(shown: traceback.TracebackException) -> None:
    shown.stack = traceback.StackSummary.from_list(_frames_to_show(list(shown.stack)))
    for earlier in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        if earlier is not None:
            _leave_out_frames(earlier)


def _frames_to_show(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    others = [frame for frame in frames if not _is_hidden(frame.filename)]
    shown = [frame for frame in others[:-1] if not _is_of_gymnasium(frame.filename)]
    return shown + others[-1:] or frames[-1:]


def _is_hidden(filename: str) -> bool:
    path = Path(os.path.realpath(filename))
    return filename.startswith("<frozen ") or path in _HIDDEN_FILES or path.is_relative_to(_PACKAGE)


def _is_of_gymnasium(filename: str) -> bool:
    gymnasium = sys.modules.get("gymnasium")
    if gymnasium is None or gymnasium.__file__ is None:
        return False
    return Path(os.path.realpath(filename)).is_relative_to(Path(gymnasium.__file__).resolve().parent)
