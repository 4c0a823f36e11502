"""Settings of MuJoCo for a whole process."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import logging
import sys

log = logging.getLogger(__name__)


@functools.cache
def log_warnings_once() -> None:
    """Logs each of MuJoCo's warnings once; it prints one for each model, and writes a file in the working directory."""
    if importlib.util.find_spec("mujoco") is None:
        return
    import mujoco

    @functools.lru_cache(maxsize=100)
    def show(text: str) -> None:
        log.warning("MuJoCo: %s", text)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: show(text.partition(" Time = ")[0]))


def stop_timers() -> None:
    """Stops the clock behind `MjData.timer`, once an environment has loaded MuJoCo, unless the user has set a clock.

    MuJoCo's Python package reads a clock many times a step: a seventh of the time of HalfCheetah's and Hopper's
    physics, a thirteenth of Ant's (MuJoCo 4.0, two cores of an Intel Xeon).
    """
    if "mujoco" in sys.modules:
        _stop_timers()


@functools.cache
def _stop_timers() -> None:
    import mujoco

    if mujoco.get_mjcb_time() is not None:
        return
    try:  # the package's own clock cannot be removed in Python
        library = ctypes.CDLL(mujoco._callbacks.__file__)
        ctypes.c_void_p.in_dll(library, "mjcb_time").value = None
    except (AttributeError, OSError, ValueError) as error:
        log.debug("MuJoCo's timers run on: %s", error)
