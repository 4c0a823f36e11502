"""Connects the zoo with the core."""

from __future__ import annotations

COMMANDS = {"zoo": ("asyncrl.contrib.zoo.command", "list the trained policies that come with asyncrl")}
LOCATIONS = {"zoo:": "asyncrl.contrib.zoo.policies:find"}
