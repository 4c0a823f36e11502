"""The command `asyncrl` and what the shell completes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.commands import console
from asyncrl.commands import main as commands_main
from asyncrl.commands.console import command_text
from asyncrl.commands.main import COMMANDS, main
from asyncrl.config.schema import TrainConfig
from asyncrl.config.settings import all_settings
from asyncrl.observers.summary import Summary
from asyncrl.storage import checkpoint
from asyncrl.storage.run_folder import RunFolder

NO_CONTENT = checkpoint.Checkpoint({"weight": torch.zeros(1)}, {}, {})


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "completion"])
def test_a_command_is_the_module_of_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([name, "--help"])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: asyncrl {name}")


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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_without_a_traceback_when_its_reader_has_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyproject = Path(__file__).resolve().parents[1] / "pyproject.toml"
    assert '\nasyncrl = "asyncrl.commands.main:main"\n' in pyproject.read_text()
    read_end, write_end = os.pipe()
    os.close(read_end)
    monkeypatch.setattr(commands_main, "end_process", sys.exit)
    monkeypatch.setattr(sys, "argv", ["asyncrl", name, "bash" if name == "completion" else "--help"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with open(write_end, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 1


def test_a_page_of_help_that_fits_a_pipes_buffer_has_no_traceback_either() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-c", "from asyncrl.commands.main import main; main()", "train", "--help=model"]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_hint_names_the_command_as_the_users_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "asyncrl"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    assert command_text("evaluate", "my run") == "bin/asyncrl evaluate 'my run'"
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_text("evaluate", "puck") == "asyncrl evaluate puck"
    program.unlink()
    assert command_text("evaluate", "puck") == "bin/python -m asyncrl evaluate puck"


@pytest.mark.parametrize(
    ("settings", "best"),
    [
        ({}, "best: 7.0 (training return at 1,000 steps)"),
        ({"eval_every_env_steps": 500}, "best: 7.0 (evaluation return at 1,000 steps)"),
    ],
)
def test_the_end_of_a_run_hints_at_the_newest_checkpoint_and_says_what_the_best_is(
    settings: dict[str, Any],
    best: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "command_text", lambda *words: " ".join(["asyncrl", *words]))
    with RunFolder.create("train_dir", "puck", "resume") as folder:
        checkpoint.save(folder.checkpoints, NO_CONTENT, 2000, keep=1)
        checkpoint.save_best(folder.checkpoints, NO_CONTENT, 1000, 7.0)
    config = TrainConfig(env="CartPole-v1", experiment="puck", **settings)
    console.print_end(Summary("interrupted", env_steps=2000, best_return=7.0), config, folder)
    lines = capsys.readouterr().out.splitlines()
    assert best in [" ".join(line.split()) for line in lines]
    assert [line for line in lines if line.startswith("  asyncrl ")] == [
        "  asyncrl evaluate puck",
        "  asyncrl train --experiment=puck",
        "  asyncrl plot puck",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("status", "env_steps", "seconds", "more"),
    [
        ("interrupted", 2000, None, []),
        ("interrupted", 2000, 30.0, ["--train_for_seconds=30"]),
        ("completed", 2000, 30.0, ["--train_for_seconds=60"]),
        ("completed", 9000, None, ["--train_for_env_steps=18000"]),
        ("completed", 9000, 30.0, ["--train_for_env_steps=18000", "--train_for_seconds=30"]),
    ],
)
def test_the_command_that_trains_on_extends_the_limit_that_was_reached_and_keeps_the_other(
    status: Any,
    env_steps: int,
    seconds: float | None,
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "command_text", lambda *words: " ".join(["asyncrl", *words]))
    with RunFolder.create("train_dir", "puck", "resume") as folder:
        checkpoint.save(folder.checkpoints, NO_CONTENT, 2000, keep=1)
    config = TrainConfig(env="CartPole-v1", experiment="puck", train_for_env_steps=9000, train_for_seconds=seconds)
    console.print_end(Summary(status, env_steps=env_steps), config, folder)
    expected = " ".join(["asyncrl train --experiment=puck", *more])
    assert expected in [line.strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("path", [["bin", "library"], ["bin", ".", "library"]])
def test_the_working_directory_comes_first_as_with_python_m(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = [os.path.abspath(entry) for entry in path]
    monkeypatch.setattr(sys, "path", [*entries, *filter(None, sys.path)])
    monkeypatch.setattr(sys, "argv", ["asyncrl", "doctor", "--help"])
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
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
