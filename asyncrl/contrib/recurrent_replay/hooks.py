"""Connects recurrent replay with the core."""

from __future__ import annotations

REPLAYS = {"recurrent_replay": "asyncrl.contrib.recurrent_replay.kind:choose"}
RULES = {"recurrent_replay": "asyncrl.contrib.recurrent_replay.checks:find_problems"}
SETTINGS = {"recurrent_replay": ("asyncrl.contrib.recurrent_replay.settings:RecurrentReplaySettings", "")}
