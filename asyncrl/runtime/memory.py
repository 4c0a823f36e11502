"""How much memory there is to take: the machine's and the control group's limit, whichever is tighter."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory in bytes that can still be allocated: min(MemAvailable, control group limit - use)."""
    free = [int(psutil.virtual_memory().available)]
    for folder in _cgroup_folders():
        for limit_name, use_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, use = _read_number(folder / limit_name), _read_number(folder / use_name)
            if limit is not None and use is not None:
                free.append(max(0, limit - use))
    return min(free)


def _cgroup_folders() -> list[Path]:
    """Folders of this process's control group and of those above it, version 2 and the memory tree of version 1."""
    folders = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = _CGROUP_ROOT
        elif "memory" in controllers.split(","):
            root = _CGROUP_ROOT / "memory"
        else:
            continue
        folder = root / path.lstrip("/")
        folders.append(folder)
        folders.extend(parent for parent in folder.parents if root == parent or root in parent.parents)
    return folders


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
