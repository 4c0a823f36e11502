"""Environments that are shown or recorded: what keeps them from it is said before anything is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from drawn_envs import greys, size_of
from gymnasium.spaces import Box, Discrete

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs import showing
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.showing import make_shown_env


class Blind(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Drawn(Blind):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None, gives: str = "pixels") -> None:
        if gives == "GL at once":
            raise AttributeError("'NoneType' object has no attribute of OpenGL")
        self.render_mode = render_mode if gives != "another mode" else "ansi"
        self._gives = gives

    def render(self) -> Any:
        if self._gives == "GL":
            raise RuntimeError("an OpenGL platform library has not been loaded into this process")
        if self._gives == "mistake":
            raise ZeroDivisionError("the camera")
        if self._gives == "grey":
            return np.zeros((32, 32), np.uint8)
        if self._gives == "fractions":
            return np.ones((32, 32, 3), np.float32)
        return np.zeros((32, 32, 3), np.uint8) if self._gives == "pixels" else None


gymnasium.register("Blind-v0", Blind)
gymnasium.register("Drawn-v0", Drawn)


@pytest.fixture(autouse=True)
def without_screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    showing._choose_opengl.cache_clear()
    monkeypatch.setattr(showing, "_can_draw_by", lambda backend: False)
    yield
    showing._choose_opengl.cache_clear()


@pytest.mark.parametrize(
    ("env", "gives", "said"),
    [
        ("Blind-v0", None, "its constructor takes no render_mode"),
        ("Drawn-v0", "another mode", "its render_mode is 'ansi'"),
        ("Drawn-v0", "nothing", "render() returned NoneType"),
        ("Drawn-v0", "grey", "render() returned an array of shape (32, 32), expected (height, width, 3)"),
        ("Drawn-v0", "fractions", "an array of float32, expected uint8, whole numbers from 0 to 255"),
        ("Drawn-v0", "GL", "install libegl1 and set MUJOCO_GL=egl"),
        ("Drawn-v0", "GL at once", "install libegl1 and set MUJOCO_GL=egl"),
    ],
)
def test_what_cannot_be_recorded_is_said_and_leaves_no_folder(
    env: str, gives: str | None, said: str, tmp_path: Path
) -> None:
    config = TrainConfig(env=env, env_kwargs={} if gives is None else {"gives": gives})
    with pytest.raises(UsageError) as caught:
        make_shown_env(config, "rgb_array", lambda _: tmp_path / "videos" / "a.mp4", 0)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value) and "env_kwargs" not in str(caught.value)
    assert not (tmp_path / "videos").exists()


def test_a_mistake_in_render_is_the_environments(tmp_path: Path) -> None:
    config = TrainConfig(env="Drawn-v0", env_kwargs={"gives": "mistake"})
    with pytest.raises(EnvironmentFailed, match="the camera"):
        make_shown_env(config, "rgb_array", lambda _: tmp_path / "a.mp4", 0)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(UsageError, match="pip install"):
        make_shown_env(TrainConfig(env="CartPole-v1"), "rgb_array", lambda _: tmp_path / "videos" / "a.mp4", 0)
    assert not (tmp_path / "videos").exists()


def test_a_file_has_the_frames_of_its_episodes_and_even_sizes(tmp_path: Path) -> None:
    config = TrainConfig(env="drawn_envs:counter", env_kwargs={"length": 3, "height": 33, "width": 41})
    env = make_shown_env(config, "rgb_array", lambda episode: tmp_path / "new" / f"{episode // 2}.mp4", 1)
    for episode in range(3):
        env.reset(seed=episode)
        for _ in range(3):
            env.step(0)
    env.close()
    once = [10, 30, 50, 70]
    assert greys(tmp_path / "new" / "0.mp4") == pytest.approx([*once, *once], abs=3)
    assert greys(tmp_path / "new" / "1.mp4") == pytest.approx(once, abs=3)
    assert size_of(tmp_path / "new" / "0.mp4") == (40, 32, 10.0)


def test_a_video_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = make_shown_env(TrainConfig(env="drawn_envs:counter"), "rgb_array", lambda _: tmp_path / "file" / "a.mp4", 0)
    with pytest.raises(UsageError, match=r"The video .*a\.mp4 cannot be written: "):
        env.reset(seed=0)
    env.close()


def test_a_window_needs_a_screen() -> None:
    with pytest.raises(UsageError, match=r"DISPLAY is not set\. --video records"):
        make_shown_env(TrainConfig(env="CartPole-v1"), "human", None, 0)


@pytest.mark.parametrize(
    ("before", "works", "chosen"),
    [(None, {"egl", "osmesa"}, "egl"), (None, {"osmesa"}, "osmesa"), (None, set(), None), ("glfw", {"egl"}, "glfw")],
)
def test_mujoco_draws_by_what_works_unless_the_user_has_chosen(
    before: str | None, works: set[str], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", before or "")
    if before is None:
        monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(showing.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(showing, "_can_draw_by", lambda backend: backend in works)
    showing._choose_opengl()
    assert os.environ.get("MUJOCO_GL") == chosen
