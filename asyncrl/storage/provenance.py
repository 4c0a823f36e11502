"""The environment of a run: versions, source, command, machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from asyncrl.config import host

_PACKAGES = (
    "asyncrl", "torch", "numpy", "gymnasium", "mujoco", "faster-fifo", "signal-slot-mp", "tensorboardX", "safetensors",
    "pydantic", "psutil",
)  # fmt: skip
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def describe(device: str) -> dict[str, Any]:
    """Returns versions, source and machine, JSON-able and without user or host names; `device` is the resolved one."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git_commit": git_commit(_SOURCE_ROOT),
        "machine": {
            "platform": platform.platform(),
            "cpu": host.cpu_name(),
            "cores": os.cpu_count(),
            "usable_cores": host.num_usable_cores(),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": _gpu_names(),
            "device": device,
        },
    }


def git_commit(source_root: Path) -> str | None:
    """Returns the commit of a source checkout, with `-dirty` if files differ from it; None for an installed wheel."""
    if not (source_root / ".git").exists():
        return None
    command = ["git", "-C", str(source_root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu_names() -> list[str]:
    """Names from the NVIDIA driver; torch would initialize CUDA in this process."""
    paths = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [name for path in paths for name in _values(path, "Model:")]


def _values(path: Path, name: str) -> list[str]:
    """The values of the lines `NAME : VALUE` of a file; none if it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]
