"""The traceback of an environment: the user's frames, and none of those that called them."""

from __future__ import annotations

import io
import pdb
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

import asyncrl
from asyncrl.envs.errors import environment_traceback
from asyncrl.envs.factory import make_env

PACKAGE = f'"{Path(asyncrl.__file__).parent}/'
GYMNASIUM = f'"{Path(gymnasium.__file__).parent}/'

SOURCE = """
import gymnasium
from gymnasium.spaces import Box, Discrete

class Robot(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete(2)

    def reset(self, seed=None, options=None):
        return [0.0], {}

    def step(self, action):
        if action == 1:
            breakpoint()
        try:
            return self._move()
        except KeyError as error:
            raise RuntimeError("the arm is stuck") from error

    def _move(self):
        raise KeyError("elbow")
"""


def user_module(file: Path) -> types.ModuleType:
    """A module of the user's in that file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SOURCE)
    module = types.ModuleType(file.stem)
    exec(compile(SOURCE, str(file), "exec"), module.__dict__)
    return module


def caught(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as error:  # noqa: PT011 - whatever it raises
        call()
    return error.value


@pytest.mark.parametrize("folder", ["home/user", "home/asyncrl", "home/asyncrl/asyncrl_tasks", "gymnasium/wrappers"])
def test_a_users_frame_is_shown_wherever_the_file_lies_and_no_wrappers(folder: str, tmp_path: Path) -> None:
    file = tmp_path / folder / "robot.py"
    robot = TransformReward(TimeLimit(user_module(file).Robot(), 10), lambda reward: reward)
    robot.reset()
    text = environment_traceback(caught(lambda: robot.step(0)))
    assert text.count("RuntimeError: the arm is stuck") == text.count("KeyError: 'elbow'") == 1
    assert text.count(f'File "{file}"') == 3, text
    assert GYMNASIUM not in text and PACKAGE not in text


def test_a_file_beside_the_package_whose_name_begins_like_it_is_the_users() -> None:
    file = Path(asyncrl.__file__).parent.with_name("asyncrl_tasks.py")
    code = compile("def fail():\n    raise ValueError('mine')\n", str(file), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    assert f'File "{file}"' in environment_traceback(caught(names["fail"]))


def test_an_exception_without_a_users_frame_shows_its_last_frame_only() -> None:
    error = caught(lambda: make_env("no_id:"))
    of_the_package = error.__traceback__.tb_next.tb_next
    assert of_the_package.tb_next is not None, "there are several"
    text = environment_traceback(error.with_traceback(of_the_package))
    assert text.count("File") == text.count(PACKAGE) == 1, text


def test_what_gymnasium_raises_itself_keeps_the_line_that_raises_it() -> None:
    env = make_env("CartPole-v1")
    env.reset()
    text = environment_traceback(caught(lambda: env.step(7)))
    assert text.count("cartpole.py") == 1 and "AssertionError" in text
    assert "wrappers" not in text


def test_a_debugger_without_a_terminal_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = user_module(tmp_path / "robot.py").Robot()
    no_terminal = pdb.Pdb(stdin=io.StringIO(), stdout=io.StringIO())
    monkeypatch.setattr(sys, "breakpointhook", lambda: no_terminal.set_trace(sys._getframe(1)))
    text = environment_traceback(caught(lambda: robot.step(1)))
    assert "--serial_mode=True" in text.splitlines()[-1]
    assert "bdb.py" not in text and "pdb.py" not in text
    assert f'File "{tmp_path / "robot.py"}"' in text
