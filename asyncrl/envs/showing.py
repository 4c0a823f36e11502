"""Makes environments that are drawn: in a window, or recorded as videos."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import error as gymnasium_error

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS, EnvironmentFailed, environment_traceback
from asyncrl.envs.factory import make_run_env

_GL_PACKAGES = {"OpenGL", "glfw", "mujoco"}
_GL_CHECK = "from mujoco.{0} import GLContext; context = GLContext(16, 16); context.make_current(); context.free()"
_GL_CHECK_S = 20.0
_FPS = 30
_ENCODING_S = 60.0


PathOf = Callable[[int], Path]
"""The video file of an episode, by the episode's number in its environment; several episodes may share one."""


def make_shown_env(config: TrainConfig, render_mode: str, video: PathOf | None, number: int) -> gymnasium.Env[Any, Any]:
    """Makes an environment of a run that is drawn.

    Args:
        config: settings of the run.
        render_mode: human for a window, rgb_array for a recording.
        video: the file of each episode; None for no recordings.
        number: of the environment. The first one, 0, draws once as a check.

    Raises:
        UsageError: as for `make_env`; the environment does not have the mode; there is no screen or no OpenGL; a
            package is missing.
        EnvironmentFailed: the environment raised while it was drawn.
    """
    if video is not None:
        require_video_package()
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
        return env if video is None else FilmedEnv(env, video)
    except BaseException:
        with contextlib.suppress(Exception):  # closing a window that was not opened may fail
            env.close()
        raise


def require_video_package() -> None:
    """Raises UsageError, with what to install, if the package that writes videos is missing."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError("Videos need imageio-ffmpeg, which is not installed: pip install imageio-ffmpeg")


class FilmedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes what an environment draws to MP4 files, frame by frame, so that no episode is held in memory.

    Frames per second are `metadata["render_fps"]`, or 30. A file is complete when the next one begins, or when the
    environment is closed: both raise UsageError if ffmpeg could not finish it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], video: PathOf) -> None:
        """Owns `env`, whose render mode is rgb_array; `video` is the file of each episode."""
        super().__init__(env)
        self._video = video
        self._path: Path | None = None
        self._size = (0, 0)
        self._encoder: Generator[None, npt.NDArray[np.uint8] | None, None] | None = None
        self._num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begun = super().reset(seed=seed, options=options)
        path = self._video(self._num_episodes)
        self._num_episodes += 1
        if path != self._path:
            self._complete()
            self._path = path
        self._film()
        return begun

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._film()
        return result

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._complete()

    def _film(self) -> None:
        frame: Any = self.env.render()
        height, width = (2 * (length // 2) for length in frame.shape[:2])  # what every player shows has even sizes
        try:
            if self._encoder is None:
                self._begin((width, height))
            assert self._encoder is not None
            if (width, height) != self._size:
                raise UsageError(f"{self._path}: a frame of {width} x {height} follows others of another size.")
            self._encoder.send(np.ascontiguousarray(frame[:height, :width], dtype=np.uint8))
        except (OSError, RuntimeError) as error:
            self._encoder = None
            reason = str(error).partition("\n")[0]
            raise UsageError(f"The video {self._path} cannot be written: {reason}.") from error

    def _begin(self, size: tuple[int, int]) -> None:
        import imageio_ffmpeg

        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._size = size
        self._encoder = imageio_ffmpeg.write_frames(
            str(self._path),
            size,
            fps=float(self.metadata.get("render_fps") or _FPS),
            macro_block_size=1,
            ffmpeg_log_level="error",
            ffmpeg_timeout=_ENCODING_S,
            output_params=["-f", "mp4", "-preset", "veryfast", "-threads", "1", "-movflags", "+faststart"],
        )
        self._encoder.send(None)

    def _complete(self) -> None:
        if self._encoder is None:
            return
        encoder, self._encoder = self._encoder, None
        encoder.close()
        assert self._path is not None
        if not _is_complete_video(self._path):
            raise UsageError(f"The video {self._path} is incomplete: ffmpeg could not finish it. Is the disk full?")


def _is_complete_video(path: Path) -> bool:
    """Whether a file is an MP4 video with its index, and whole: each of its boxes begins with its size and name."""
    names = set()
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = 0
            while begin < end:
                file.seek(begin)
                head = file.read(16)
                size = int.from_bytes(head[:4], "big")
                size = int.from_bytes(head[8:16], "big") if size == 1 else size  # 1: the size is behind the name
                if size < 8:
                    return False
                names.add(head[4:8])
                begin += size
    except OSError:
        return False
    return begin == end and {b"moov", b"mdat"} <= names


def _draw_once(env: gymnasium.Env[Any, Any], env_id: str, render_mode: str) -> None:
    """Draws one frame as a check before the first episode."""
    if env.render_mode != render_mode:
        raise UsageError(_no_mode(env_id, f"its render_mode is {env.render_mode!r} although {render_mode!r} was asked"))
    with _explaining(env_id):
        env.reset(seed=0)
        frame = env.render() if render_mode == "rgb_array" else None
    if render_mode == "rgb_array":
        if not isinstance(frame, np.ndarray):
            raise UsageError(_no_mode(env_id, f"render() returned {type(frame).__name__} and not an array of pixels"))
        if frame.ndim != 3 or frame.shape[2] != 3 or min(frame.shape) < 2:
            text = f"render() returned an array of shape {frame.shape}, expected (height, width, 3)"
            raise UsageError(_no_mode(env_id, text))
        if frame.dtype != np.uint8:
            text = f"render() returned an array of {frame.dtype}, expected uint8, whole numbers from 0 to 255"
            raise UsageError(_no_mode(env_id, text))


@contextlib.contextmanager
def _explaining(env_id: str) -> Iterator[None]:
    """Raises one sentence if OpenGL or a package is missing."""
    try:
        yield
    except UsageError:
        raise
    except gymnasium_error.DependencyNotInstalled as error:
        raise UsageError(f"{env_id} cannot be drawn: {error}") from error
    except ENVIRONMENT_EXCEPTIONS as error:
        if _is_of_opengl(error):
            raise UsageError(_no_opengl(env_id, error)) from error
        raise EnvironmentFailed(f"{env_id} failed while it was drawn:\n{environment_traceback(error)}") from error


def _no_mode(env_id: str, what: str) -> str:
    return (
        f"{env_id} cannot be shown or recorded: {what}. Gymnasium's interface for it is a constructor argument "
        'render_mode, metadata["render_modes"], and render(), which returns an array of pixels for "rgb_array".'
    )


def _no_opengl(env_id: str, error: BaseException) -> str:
    chosen = os.environ.get("MUJOCO_GL")
    tried = "no driver was found" if chosen is None else f"MUJOCO_GL={chosen} does not work"
    return (
        f"{env_id} cannot be drawn without OpenGL, and {tried} here ({error}). Without a screen: install libegl1 and "
        "set MUJOCO_GL=egl, or install libosmesa6 and set MUJOCO_GL=osmesa."
    )


def _is_of_opengl(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")) for frame, _ in frames} | {type(error).__module__}
    return "OpenGL" in str(error) or bool({module.partition(".")[0] for module in modules} & _GL_PACKAGES)


def _has_screen() -> bool:
    return not sys.platform.startswith("linux") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def can_open_window() -> bool:
    """Whether there is a screen, or the user has chosen where SDL draws."""
    return _has_screen() or "SDL_VIDEODRIVER" in os.environ


def _check_screen() -> None:
    if not can_open_window():
        raise UsageError("A window needs a screen: DISPLAY is not set. --video records the episodes.")


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
