"""The error that means: the user's environment raised, or died."""

from __future__ import annotations

import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])


class EnvironmentFailed(Exception):
    """An environment raised an exception. Its text says where and ends with the environment's own traceback."""


def environment_traceback(error: BaseException) -> str:
    """The traceback of `error` without the frames of this package that lead to the environment's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = next((index for index, frame in enumerate(frames) if not _is_ours(frame.filename)), len(frames))
    skipped = error.__traceback__
    for _ in range(own if own < len(frames) else 0):
        skipped = skipped.tb_next if skipped is not None else None
    return "".join(traceback.format_exception(type(error), error, skipped)).rstrip()


def _is_ours(filename: str) -> bool:
    return filename.startswith((_PACKAGE, "<frozen "))
