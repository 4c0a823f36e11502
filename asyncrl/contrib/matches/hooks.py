"""Connects matches with the core.

Other features name opponents in their module `hooks`:

    OPPONENTS   name in `--opponents`: (function from a checkpoint to its opponents' checkpoints, what they are)
"""

from __future__ import annotations

PLAYERS = {"matches": "asyncrl.contrib.matches.option:OPTION"}
