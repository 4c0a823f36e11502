"""The memory that a run can allocate, and what a process does with memory that is free again."""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

from asyncrl.config import cgroups

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Makes this process keep up to 1 GiB of memory that is free again (GNU C library; without effect elsewhere).

    By default a block above 32 MiB goes back to the system whenever it is free, and the system clears its pages when
    they are touched again. This costs a fifth of the time of an update of convolutions.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def available_bytes() -> int:
    """Returns the bytes that can still be allocated: min(MemAvailable, control group limit - use)."""
    free = [int(psutil.virtual_memory().available)]
    for folder in cgroups.folders("memory"):
        for limit_name, use_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, use = cgroups.read_number(folder / limit_name), cgroups.read_number(folder / use_name)
            if limit is not None and use is not None:
                free.append(max(0, limit - use + _reclaimable(folder)))
    return min(free)


def _reclaimable(folder: Path) -> int:
    """Cached files, which the kernel drops when memory is needed; a control group counts them as use."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    counts = {name: count for name, _, count in (line.partition(" ") for line in lines)}
    text = counts.get("inactive_file", counts.get("total_inactive_file", "0"))
    return int(text) if text.isdigit() else 0


def format_bytes(count: int) -> str:
    """A number of bytes in the unit that people use for its size."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
