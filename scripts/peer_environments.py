"""Other libraries, each in its own virtual environment."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
DRIVERS = Path(__file__).resolve().parent / "peers"
"""Scripts that a peer's interpreter runs."""


@dataclass(frozen=True)
class Peer:
    """A library in a separate virtual environment.

    Attributes:
        name: name of its folder.
        packages: installed after PyTorch; `{mujoco}` is the version of MuJoCo that asyncrl runs with.
        shown: packages whose versions are shown in tables.
        driver: script in `peers` that trains and records its progress.
    """

    name: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    driver: str


def python_of(peer: Peer, work_dir: Path) -> Path:
    """Returns the interpreter of a peer's virtual environment, which is created or completed in `work_dir`."""
    folder = work_dir / "venvs" / peer.name
    mujoco = importlib.metadata.version("mujoco")
    wanted = [TORCH, *(package.format(mujoco=mujoco) for package in peer.packages)]
    marker, python = folder / "installed.json", folder / "bin" / "python"
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == wanted:
        return python
    print(f"making {folder}: {', '.join(wanted)}", flush=True)
    venv.create(folder, with_pip=True)
    for packages in (wanted[:1], wanted):
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    marker.write_text(json.dumps(wanted), encoding="utf-8")
    return python


def versions_of(peer: Peer, work_dir: Path) -> str:
    """Returns the versions of a peer's packages."""
    program = "import importlib.metadata as m, sys; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    command = [str(python_of(peer, work_dir)), "-c", program, *peer.shown]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
