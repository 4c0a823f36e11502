"""The blocks of a document, and a folder in which they are pasted into a shell one after the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from document_command import install_programs

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>bash|python)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_MODULE = re.compile(r"# (\w+\.py)\n")
_NOT_RUN = ("not run: ", "the test command")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: bash or python.
        text: what is in it.
        module: name of the file that it is, by its first line; None for what is run.
        reason: why it is not run, "" if it is. The document says so in a comment above: <!-- not run: REASON -->.
    """

    language: str
    text: str
    module: str | None
    reason: str


def blocks_of(document: str) -> list[Block]:
    """The blocks of bash and Python, in their order."""
    found = []
    for match in _BLOCK.finditer(document):
        module = _MODULE.match(match["text"]) if match["language"] == "python" else None
        mark = match["mark"] or ""
        reason = mark.removeprefix("not run: ") if mark.startswith(_NOT_RUN) else ""
        found.append(Block(match["language"], match["text"], module[1] if module else None, reason))
    return found


class Clone:
    """A folder for pasting: a shell finds nothing in it but `python3`, until a block makes an environment."""

    def __init__(self, folder: Path, flags: str = "") -> None:
        """Makes the folder's programs; `flags` are given to each run of training."""
        self.folder = folder
        self._log = folder / "runs.jsonl"
        self._log.touch()
        install_programs(folder / "system", ("python3",))
        self._environment = {
            **os.environ,
            "PATH": str(folder / "system"),
            "PYTHONPATH": str(ROOT),
            "DOCUMENT_PATH": os.environ["PATH"],
            "DOCUMENT_LOG": str(self._log),
            "DOCUMENT_FLAGS": flags,
        }

    def paste(self, blocks: list[Block]) -> subprocess.CompletedProcess[str]:
        """Writes the modules among the blocks to files and runs the others in one shell, up to the first failure."""
        script = ["set -euo pipefail", "trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR"]
        for number, block in enumerate(blocks):
            if block.module is not None:
                (self.folder / block.module).write_text(block.text)
            elif block.language == "python":
                (self.folder / f"block{number}.py").write_text(block.text)
                script.append(f"python block{number}.py")
            else:
                script.append(block.text)
        bash = shutil.which("bash")
        assert bash is not None
        return subprocess.run(
            [bash, "-c", "\n".join(script)], cwd=self.folder, env=self._environment, capture_output=True, text=True
        )

    def runs(self) -> list[dict[str, Any]]:
        """The runs of training: the flags that the document gives, and the name of the run."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]
