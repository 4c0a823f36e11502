"""Connects the report with the core."""

from __future__ import annotations

COMMANDS = {
    "report": (
        "asyncrl.contrib.report.command",
        "write one HTML page about runs: curves, settings, faults, machine, video",
    )
}
