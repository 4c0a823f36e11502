"""The memory that a run can allocate."""

from __future__ import annotations

from pathlib import Path

import psutil

from asyncrl.config import cgroups


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
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = {name: count for name, _, count in (line.partition(" ") for line in lines)}
    text = counts.get("inactive_file", counts.get("total_inactive_file", "0"))
    return int(text) if text.isdigit() else 0
