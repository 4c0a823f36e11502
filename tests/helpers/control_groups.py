"""Control groups as files in a folder, as the kernel shows them."""

from __future__ import annotations

from pathlib import Path


def make_control_groups(root: Path, membership: str, files: dict[str, str]) -> Path:
    """Writes files below `root`; returns the file that says which groups the process is in."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    named = root / "membership"
    named.write_text(membership)
    return named
