"""Results of scripts, one JSON object a line. A script that is killed while it writes leaves at most a broken line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file in their order, none if there is no file; lines that hold no object are skipped."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [entry for entry in map(_parse, lines) if isinstance(entry, dict)]


def append(path: Path, entry: dict[str, Any]) -> None:
    """Adds an object, on a new line also where the line before was cut off."""
    is_cut_off = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * is_cut_off + json.dumps(entry) + "\n")


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
