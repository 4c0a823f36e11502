"""Makes environments that are drawn: in a window, or recorded as videos."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import make_run_env

_GL_PACKAGES = {"OpenGL", "glfw", "mujoco"}
_GL_CHECK = "from mujoco.{0} import GLContext; context = GLContext(16, 16); context.make_current(); context.free()"
_GL_CHECK_S = 20.0


def make_shown_env(config: TrainConfig, render_mode: str, video: Path | None, number: int) -> gymnasium.Env[Any, Any]:
    """Makes an environment of a run that is drawn.

    Args:
        config: settings of the run.
        render_mode: human for a window, rgb_array for a recording.
        video: folder for recordings of all episodes; None for no recordings.
        number: of the environment; part of the names of its recordings.

    Raises:
        UsageError: as for `make_env`; the environment does not have the mode; there is no screen or no OpenGL; a
            package is missing.
        EnvironmentFailed: the environment raised while it was drawn.
    """
    if render_mode == "human":
        _check_screen()
    else:
        _choose_opengl()
    try:
        with _explaining(config.env_id):
            env = make_run_env(config, render_mode)
    except (UsageError, EnvironmentFailed) as error:
        if "unexpected keyword argument 'render_mode'" in str(error) or "takes no arguments" in str(error):
            raise UsageError(_no_mode(config.env_id, "its constructor takes no render_mode")) from error
        raise
    try:
        if number == 0:
            _draw_once(env, config.env_id, render_mode)
        return env if video is None else _recording(env, video, number)
    except BaseException:
        with contextlib.suppress(Exception):  # closing a window that was not opened may fail
            env.close()
        raise


def _recording(env: gymnasium.Env[Any, Any], video: Path, number: int) -> gymnasium.Env[Any, Any]:
    try:
        with warnings.catch_warnings():
            if number > 0:  # the first environment has made the folder
                warnings.filterwarnings("ignore", message=".*Overwriting existing videos")
            return gymnasium.wrappers.RecordVideo(
                env, str(video), episode_trigger=lambda _: True, name_prefix=f"env-{number}", disable_logger=True
            )
    except gymnasium_error.DependencyNotInstalled as error:
        raise UsageError("--video needs moviepy: pip install moviepy") from error


def _draw_once(env: gymnasium.Env[Any, Any], env_id: str, render_mode: str) -> None:
    """Draws one frame as a check before the first episode."""
    if env.render_mode != render_mode:
        raise UsageError(_no_mode(env_id, f"its render_mode is {env.render_mode!r} although {render_mode!r} was asked"))
    with _explaining(env_id):
        env.reset(seed=0)
        frame = env.render() if render_mode == "rgb_array" else None
    if render_mode == "rgb_array" and not isinstance(frame, np.ndarray):
        raise UsageError(_no_mode(env_id, f"render() returned {type(frame).__name__} and not an array of pixels"))


@contextlib.contextmanager
def _explaining(env_id: str) -> Iterator[None]:
    """Raises one sentence if OpenGL or a package is missing."""
    try:
        yield
    except UsageError:
        raise
    except gymnasium_error.DependencyNotInstalled as error:
        raise UsageError(f"{env_id} cannot be drawn: {error}") from error
    except Exception as error:
        if _is_of_opengl(error):
            raise UsageError(_no_opengl(env_id, error)) from error
        raise EnvironmentFailed(f"{env_id} failed while it was drawn:\n{environment_traceback(error)}") from error


def _no_mode(env_id: str, what: str) -> str:
    return (
        f"{env_id} cannot be shown or recorded: {what}. Gymnasium's interface for it is a constructor argument "
        'render_mode, metadata["render_modes"], and render(), which returns an array of pixels for "rgb_array".'
    )


def _no_opengl(env_id: str, error: Exception) -> str:
    chosen = os.environ.get("MUJOCO_GL")
    tried = "no driver was found" if chosen is None else f"MUJOCO_GL={chosen} does not work"
    return (
        f"{env_id} cannot be drawn without OpenGL, and {tried} here ({error}). Without a screen: install libegl1 and "
        "set MUJOCO_GL=egl, or install libosmesa6 and set MUJOCO_GL=osmesa."
    )


def _is_of_opengl(error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")) for frame, _ in frames} | {type(error).__module__}
    return "OpenGL" in str(error) or bool({module.partition(".")[0] for module in modules} & _GL_PACKAGES)


def _has_screen() -> bool:
    return not sys.platform.startswith("linux") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def _check_screen() -> None:
    if not _has_screen() and "SDL_VIDEODRIVER" not in os.environ:
        raise UsageError("--render needs a screen: DISPLAY is not set. --video=FOLDER records the episodes.")


@functools.cache
def _choose_opengl() -> None:
    """Sets MUJOCO_GL to the first backend that draws without a screen, unless the user has set it."""
    if _has_screen() or "MUJOCO_GL" in os.environ or importlib.util.find_spec("mujoco") is None:
        return
    for backend in ("egl", "osmesa"):
        if _can_draw_by(backend):
            os.environ["MUJOCO_GL"] = backend
            return


def _can_draw_by(backend: str) -> bool:
    """Whether a MuJoCo context can be made. Another process tries it, because a driver may crash."""
    command = [sys.executable, "-c", _GL_CHECK.format(backend)]
    environment = {**os.environ, "MUJOCO_GL": backend}
    try:
        checked = subprocess.run(command, env=environment, capture_output=True, timeout=_GL_CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return checked.returncode == 0
