"""`python -m asyncrl.validate`: checks the settings of a run, or shows its plan."""

from __future__ import annotations

import sys

from asyncrl.cli.validate import main
from asyncrl.runtime.reader import run_for_a_reader

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
