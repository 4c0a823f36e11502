"""`python -m asyncrl.train`: trains a policy."""

from __future__ import annotations

import sys

from asyncrl.cli.train import main
from asyncrl.runtime.reader import run_for_a_reader

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))
