"""What a run never does: open a pickle, leave its folder, touch another's, listen on a network, share its memory."""

from __future__ import annotations

import os
import pickle
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import PROBE, Command

from asyncrl import evaluate, train
from asyncrl.config import host

pytestmark = pytest.mark.usefixtures("leaves_nothing")

Start = Callable[..., Command]


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_running_run_keeps_to_itself(start: Start, tmp_path: Path) -> None:
    command = start(
        "asyncrl.train", "--env=CartPole-v1", "--inference_mode=central", "--eval_every_env_steps=500", *PROBE
    )
    command.wait_until_trained()
    processes = command.session()
    assert len(processes) >= 6, "runner, fork server, learner, inference, workers"
    for process in processes:
        assert process.net_connections(kind="inet") == []
    shared = {line for process in processes for line in shared_writable_mappings(process)}
    name = "memfd:asyncrl" if host.IS_LINUX else "/dev/shm/asyncrl-"
    assert any(name in line for line in shared), "the arena is among them"
    assert not {line for line in shared if not line.endswith(" (deleted)")}, "memory with a name that others can open"

    before = contents(command.folder)
    second = start("asyncrl.train", "--env=CartPole-v1", "--restart_behavior=overwrite", *PROBE)
    code, _, err = second.finish()
    assert code == 2
    assert f"is in use by another run (process {command.process.pid})" in err
    assert before <= contents(command.folder)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.finish()[0] == 130


def shared_writable_mappings(process: psutil.Process) -> list[str]:
    """What of this process's memory others share, and may write to, by the names of the files behind it."""
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    fields = (line.split(maxsplit=5) for line in lines)
    return [each[5] for each in fields if re.fullmatch(r".w.s", each[1]) and len(each) > 5]


def contents(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if "checkpoints" not in path.parts}


def test_settings_with_python_in_them_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    executed = tmp_path / "executed"
    text = f"seed: !!python/object/apply:os.mkdir [{executed}]\n"
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    assert train.main(["--env=CartPole-v1", f"--config={file}", f"--train_dir={tmp_path}/runs"]) == 2
    assert str(file) in capfd.readouterr().err
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / ".asyncrl-run").touch()
    (run / "config.yaml").write_text(text)
    assert train.main([f"--train_dir={tmp_path}/runs", "--experiment=run"]) == 2
    assert "config.yaml" in capfd.readouterr().err
    assert not executed.exists()


def test_a_pickle_dressed_up_as_a_checkpoint_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    executed = tmp_path / "executed"
    folder = tmp_path / "checkpoint_000000000001"
    folder.mkdir()
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"):
        (folder / name).write_bytes(pickle.dumps(Malicious(executed)))
    file = tmp_path / "model.pt"
    file.write_bytes(pickle.dumps(Malicious(executed)))
    for path in (folder, file):
        assert train.main(["--env=CartPole-v1", f"--init_from={path}", f"--train_dir={tmp_path}/runs", *PROBE]) == 2
        assert str(path) in capfd.readouterr().err
        assert evaluate.main([f"--checkpoint={path}"]) == 2
        assert str(path) in capfd.readouterr().err
    assert not executed.exists()
    assert not (tmp_path / "runs").exists()
