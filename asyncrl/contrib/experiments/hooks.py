"""Connects grids and searches with the core."""

from __future__ import annotations

COMMANDS = {
    "launch": (
        "asyncrl.contrib.experiments.launch_command",
        "make the runs of a grid of settings and seeds, several at a time, with one table at the end",
    ),
    "sweep": ("asyncrl.contrib.experiments.sweep_command", "search good settings for an environment"),
}
COMPLETIONS = {"sweep": "settings"}
