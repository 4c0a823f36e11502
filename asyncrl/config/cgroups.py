"""Limits of the control groups of this process, which containers use. Reads files; needs no package."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Where the control groups' file system is mounted."""

MEMBERSHIP = Path("/proc/self/cgroup")
"""The file that names the control groups of this process."""


def folders(controller: str) -> list[Path]:
    """Folders of this process's control group and of its parents, in version 2 and in version 1 of a controller.

    `controller` is its name in version 1, such as memory or cpu.
    """
    found = []
    for line in _lines(MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top = ROOT
        elif controller in controllers.split(","):
            top = ROOT / controller
        else:
            continue
        folder = top / path.lstrip("/")
        found += [folder, *(parent for parent in folder.parents if top == parent or top in parent.parents)]
    return found


def cpu_quota() -> int | None:
    """Cores whose time the control groups let this process use, rounded up; None without a limit."""
    quotas = [quota for folder in folders("cpu") for quota in _quotas(folder)]
    return max(1, math.ceil(min(quotas))) if quotas else None


def read_number(path: Path) -> int | None:
    """The number in a file of a control group; None without such a file, or where it has a word such as `max`."""
    text = " ".join(_lines(path))
    return int(text) if text.isdigit() else None


def _quotas(folder: Path) -> Iterator[float]:
    quota, _, period = " ".join(_lines(folder / "cpu.max")).partition(" ")
    if quota.isdigit() and period.isdigit():
        yield int(quota) / int(period)
    quota_us, period_us = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    if quota_us and period_us:
        yield quota_us / period_us


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
