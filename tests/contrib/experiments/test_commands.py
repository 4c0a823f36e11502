"""How the core finds `launch` and `sweep`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.commands.main import main


def test_the_shell_completes_the_settings_of_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "--num_workers=" in line]
    assert line.strip().startswith('train|validate|benchmark|sweep) words="')


@pytest.mark.parametrize(
    ("name", "said"), [("launch", "error: No grid was given"), ("sweep", "error: --study is required")]
)
def test_each_is_a_module_too(name: str, said: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", f"asyncrl.{name}"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
