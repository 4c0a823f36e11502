"""`asyncrl.train` for tests of ranks that stop responding: such a rank counts as dead sooner."""

from __future__ import annotations

import sys

from asyncrl.processes import peers
from asyncrl.train import main

peers.SILENCE_S = 8.0

if __name__ == "__main__":
    sys.exit(main())
