"""The command `asyncrl` and what the shell completes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.commands.main import COMMANDS, main
from asyncrl.config.settings import all_settings


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_a_command_is_the_module_of_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m asyncrl.{name}")


def test_a_mistake_is_one_sentence_with_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == (
        f"error: There is no command 'trian': expected one of {', '.join(COMMANDS)}; the nearest is train.\n"
    )
    assert main(["validate", "--env=CartPole-v1", "--num_worker=2"]) == 2
    assert "the nearest is --num_workers." in capsys.readouterr().err
    assert main([]) == main(["--help"]) == 0


def test_it_runs_as_a_module_and_keeps_the_exit_code(tmp_path: Path) -> None:
    for flags, code in ((["--version"], 0), (["validate", "--env=CartPole-v1", "--num_workers=1"], 0), (["x"], 2)):
        done = subprocess.run([sys.executable, "-m", "asyncrl", *flags], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("path", [["bin", "library"], ["bin", ".", "library"]])
def test_the_working_directory_comes_first_as_with_python_m(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = [os.path.abspath(entry) for entry in path]
    monkeypatch.setattr(sys, "path", [*entries, *filter(None, sys.path)])
    monkeypatch.setattr(sys, "argv", ["asyncrl", "doctor", "--help"])
    for _ in range(2):
        assert main() == 0
        assert sys.path[: 1 + len(entries)] == [os.getcwd(), *entries]
        sys.argv = ["asyncrl", "doctor", "--help"]


def complete(*words: str) -> set[str]:
    script = subprocess.run(
        [sys.executable, "-m", "asyncrl", "completion", "bash"], check=True, capture_output=True, text=True
    ).stdout
    line = " ".join(f"'{word}'" for word in words)
    ask = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _asyncrl; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_shell_completes_commands_and_settings() -> None:
    assert complete("asyncrl", "") == set(COMMANDS)
    assert complete("asyncrl", "va") == {"validate"}
    assert complete("asyncrl", "train", "--num_b") == {"--num_batches_per_epoch=", "--num_batches_to_accumulate="}
    assert complete("asyncrl", "train", "--serial") == {"--serial_mode"}
    assert len(complete("asyncrl", "train", "--")) == len(all_settings())
    assert main(["completion"]) == 2
