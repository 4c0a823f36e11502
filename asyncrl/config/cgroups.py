"""Control groups of this process, whose limits are tighter than what the machine has. Read without a dependency."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Where the control groups' file system is mounted."""

MEMBERSHIP = Path("/proc/self/cgroup")
"""The file that names the control groups of this process."""


def folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Folders of this process's control group and of those above it, version 2 and a controller's tree of version 1.

    Args:
        controller: as version 1 names it, such as memory or cpu.
        root: see `ROOT`.
        membership: see `MEMBERSHIP`.
    """
    found = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = root
        elif controller in controllers.split(","):
            top = root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        found.append(folder)
        found.extend(parent for parent in folder.parents if top == parent or top in parent.parents)
    return found


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Cores whose time the control groups let this process use, rounded up; None without a limit."""
    quotas = [quota for folder in folders("cpu", root, membership) for quota in _quotas(folder)]
    return max(1, math.ceil(min(quotas))) if quotas else None


def read_number(path: Path) -> int | None:
    """The number in a file of a control group; None if there is no such file or it says something else, as `max`."""
    text = " ".join(_lines(path))
    return int(text) if text.isdigit() else None


def _quotas(folder: Path) -> Iterator[float]:
    quota, _, period = " ".join(_lines(folder / "cpu.max")).partition(" ")
    if quota.isdigit() and period.isdigit():
        yield int(quota) / int(period)
    microseconds = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    if microseconds[0] and microseconds[1]:
        yield microseconds[0] / microseconds[1]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
