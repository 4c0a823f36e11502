"""Limits of the system that are too low for a run: one sentence before anything is made, the same in each command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from quick_start import QuickProcess

TIMEOUT_S = 120.0
SETTINGS = ("--env=CartPole-v1", "--num_workers=2", "--train_for_env_steps=300", "--with_tensorboard=False")
NO_SHARED_MEMORY = "from multiprocessing import heap; heap.Arena._dir_candidates = ['/proc/missing']"
NO_TEMPORARY_FOLDER = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc/missing']"
FEW_TASKS = (
    "from asyncrl.config import cgroups; from pathlib import Path; "
    "cgroups.ROOT, cgroups.MEMBERSHIP = Path('groups'), Path('groups/membership')"
)
NO_THREADS = (
    "import threading; start, before = threading.Thread.start, 2\n"
    "def limited(thread):\n"
    '    if threading.active_count() > before: raise RuntimeError("can\'t start new thread")\n'
    "    start(thread)\n"
    "threading.Thread.start = limited"
)

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_{0}, ({1}, {1}))"


def run(
    tmp_path: Path,
    command: str,
    *arguments: str,
    prelude: str = "",
    is_fresh: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """A command in its own process, whose system is changed by `prelude` first.

    `is_fresh`: it is started by its own interpreter, which has loaded nothing.
    """
    code = f"import sys\n{prelude}\nfrom asyncrl.{command} import main\nif __name__ == '__main__': sys.exit(main())"
    (tmp_path / "limited.py").write_text(code)
    if not is_fresh:
        process = QuickProcess("limited", arguments, tmp_path, {**os.environ, **environment})
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess([command, *arguments], process.wait(), stdout, stderr)
    return subprocess.run(
        [sys.executable, "-m", "limited", *arguments],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def is_one_sentence(result: subprocess.CompletedProcess[str], *parts: str) -> bool:
    """Whether a command refuses with one line, which has the limit, the need and the remedy."""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    is_refused = result.returncode == 2 and len(errors) == 1 and "Traceback" not in result.stderr
    return is_refused and all(part in errors[0] for part in parts)


@pytest.mark.parametrize("command", ["validate", "train", "doctor"])
def test_a_limit_that_is_too_low_is_one_sentence_before_the_run(tmp_path: Path, command: str) -> None:
    settings = () if command == "doctor" else SETTINGS
    result = run(tmp_path, command, *settings, prelude=LIMIT.format("NOFILE", 36))
    assert is_one_sentence(result, "may open 36 files", "needs about", "ulimit -Hn"), result.stderr
    assert not (tmp_path / "train_dir").exists()


@pytest.mark.parametrize(
    ("command", "change", "parts"),
    [
        ("validate", {"prelude": FEW_TASKS}, ("allows 30 processes and threads", "22 run", "--pids-limit")),
        ("train", {"prelude": NO_THREADS}, ("threads can be started", "ulimit -u")),
        ("validate", {"prelude": NO_TEMPORARY_FOLDER}, ("temporary folder", "TMPDIR")),
        (
            "train",
            {"prelude": LIMIT.format("AS", 800 << 20), "is_fresh": True},
            ("819200 KiB of address space", "ulimit -v"),
        ),
        ("train", {"prelude": LIMIT.format("FSIZE", 20 << 10)}, ("A file may have 20 KiB", "ulimit -f")),
    ],
    ids=["control group", "threads", "temporary folder", "address space", "file size"],
)
def test_other_limits_are_one_sentence_too(
    tmp_path: Path, command: str, change: dict[str, object], parts: tuple[str, ...]
) -> None:
    groups = tmp_path / "groups"
    (groups / "job").mkdir(parents=True)
    (groups / "membership").write_text("0::/job\n")
    (groups / "job/pids.max").write_text("30\n")
    (groups / "job/pids.current").write_text("22\n")
    result = run(tmp_path, command, *SETTINGS, **change)  # type: ignore[arg-type]
    assert is_one_sentence(result, *parts), result.stderr
    assert not (tmp_path / "train_dir").exists()


def test_sockets_have_a_private_folder_instead_of_a_long_one_and_shared_memory_needs_none(tmp_path: Path) -> None:
    """The folder's path is printed by a callback, which runs in the runner. It is deleted at the end."""
    (tmp_path / "shows.py").write_text(
        "import multiprocessing, os, asyncrl\n"
        "class Shows(asyncrl.Observer):\n"
        "    def on_start(self, run):\n"
        "        path = multiprocessing.util.get_temp_dir()\n"
        "        print('socket folder', path, oct(os.stat(path).st_mode & 0o777))\n"
    )
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    shown = (*SETTINGS, "--callbacks=shows:Shows")
    result = run(tmp_path, "train", *shown, prelude=NO_SHARED_MEMORY, TMPDIR=str(folder))
    assert result.returncode == 0, result.stderr
    assert list(folder.iterdir()) == []
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("socket folder")]
    *_, path, mode = line.split()
    assert mode == "0o700" and len(path) < 76 and not Path(path).exists()
