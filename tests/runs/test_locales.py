"""Settings with characters that the locale's encoding does not have, which is ASCII with `LC_ALL=C`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import PROBE

NAME = "\xfc\u4e2d"
ENV = """
import gymnasium


class Named(gymnasium.Wrapper):
    def __init__(self, name):
        assert name == "\\xfc\\u4e2d", ascii(name)
        super().__init__(gymnasium.make("CartPole-v1"))
"""
SERIAL = ("--serial_mode=True", "--async_rl=False", "--train_for_env_steps=64", "--train_dir=runs", "--experiment=run")


def in_ascii(folder: Path, module: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a locale of ASCII characters, without Python's UTF-8 mode."""
    own = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (folder / "named.py").write_text(ENV)
    command = [sys.executable, "-m", module, *flags]
    environment = {**os.environ, **own}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_json_that_is_no_ascii_text_is_read_in_any_locale(tmp_path: Path) -> None:
    kwargs = f'--env_kwargs={{"name": "{NAME}"}}'
    trained = in_ascii(tmp_path, "asyncrl.train", "--env=named:Named", kwargs, *PROBE, *SERIAL)
    assert trained.returncode == 0, trained.stderr
    played = in_ascii(tmp_path, "asyncrl.evaluate", "--experiment=run", "--train_dir=runs", "--episodes=1", kwargs)
    assert played.returncode == 0, played.stderr


@pytest.mark.parametrize("module", ["asyncrl.train", "asyncrl.commands.main"])
def test_a_setting_that_is_no_ascii_text_is_printed_in_any_locale(tmp_path: Path, module: str) -> None:
    text = f"env: named:Named\nenv_kwargs: {{name: {NAME}}}\ntrack_project: {NAME}\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    flags = ("--config=own.yaml", "--print_config")
    if module == "asyncrl.commands.main":
        code = "import sys; from asyncrl.commands.main import main; sys.exit(main())"
        (tmp_path / "command.py").write_text(code)
        module, flags = "command", ("train", *flags)
    done = in_ascii(tmp_path, module, *flags)
    assert done.returncode == 0, done.stderr
    assert r"\xfc\u4e2d" in done.stdout
