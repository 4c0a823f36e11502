"""`python -m asyncrl.evaluate`: plays a trained policy."""

from __future__ import annotations

import sys

from asyncrl.cli.evaluate import main
from asyncrl.runtime.reader import run_for_a_reader

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
